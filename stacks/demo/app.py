"""The service of the demo image: says that it is alive, and what it is made of."""

from importlib.metadata import distributions

from fastapi import FastAPI

app = FastAPI(title="demo")


@app.get("/health")
async def health() -> dict[str, str]:
    """For probes."""
    return {"status": "ok"}


@app.get("/packages")
async def packages() -> dict[str, str]:
    """Name and version of every installed package."""
    return {d.metadata["Name"]: d.version for d in distributions()}
