"""The HTTP side of the simulator: SGLang's routes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import distributions
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from .options import Options
from .service import (
    Service,
    completion_stream,
    finished,
    generate_stream,
    meta_info,
    metrics,
    server_info,
    text_of,
    usage_of,
)

STREAM = "text/event-stream"
HEALTH_TIMEOUT = 20
_LIMIT = 128
"""New tokens where a request does not say, as SGLang has it for /generate."""


def make_app(options: Options) -> FastAPI:
    """The application; its engine starts with it, on the loop that runs it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = service = Service(options)
        task = asyncio.create_task(service.engine.run())
        yield
        task.cancel()

    async def allowed(request: Request) -> None:
        key = options.api_key
        if key and request.headers.get("authorization") != f"Bearer {key}":
            raise HTTPException(401, "Unauthorized")

    app = FastAPI(title="SGLang simulator", lifespan=lifespan)
    guarded = [Depends(allowed)]
    for path, route in (
        ("/health", health),
        ("/health_generate", health_generate),
        ("/metrics", metrics_text),
    ):
        app.add_api_route(path, route)
    routes: tuple[tuple[str, Callable[..., Any], list[str]], ...] = (
        ("/server_info", info, ["GET"]),
        ("/get_server_info", info, ["GET"]),
        ("/model_info", model_info, ["GET"]),
        ("/get_model_info", model_info, ["GET"]),
        ("/v1/models", models, ["GET"]),
        ("/flush_cache", flush_cache, ["GET", "POST"]),
        ("/generate", generate, ["POST"]),
        ("/v1/completions", completions, ["POST"]),
        ("/packages", packages, ["GET"]),
    )
    for path, guarded_route, methods in routes:
        app.add_api_route(path, guarded_route, methods=methods, dependencies=guarded)
    return app


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def health(request: Request) -> Response:
    """503 while starting; a server that hangs answers 503 too, late."""
    service = _service(request)
    if service.engine.frozen or service.options.fault[0] == "start-hang":
        await asyncio.sleep(HEALTH_TIMEOUT)
        return Response(status_code=503)
    return Response(status_code=200 if service.ready else 503)


async def health_generate(request: Request) -> Response:
    """Like /health, with a generation of one token."""
    service = _service(request)
    if not service.ready:
        return Response(status_code=503)
    job, _ = service.submit("health", 1)
    try:
        await asyncio.wait_for(finished(job), HEALTH_TIMEOUT)
    except asyncio.TimeoutError:
        return Response(status_code=503)
    return Response(status_code=200)


async def info(request: Request) -> dict[str, Any]:
    """All settings and the engine's state."""
    return server_info(_service(request))


async def model_info(request: Request) -> dict[str, Any]:
    """What is served."""
    path = _service(request).options.model_path
    return {"model_path": path, "tokenizer_path": path, "is_generation": True, "weight_version": "default"}


async def models(request: Request) -> dict[str, Any]:
    """OpenAI's list."""
    name = _service(request).options.served_model_name or _service(request).options.model_path
    return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "sglang", "root": name}]}


async def flush_cache(request: Request) -> Response:
    """Empties the prefix cache; refused while requests run."""
    if _service(request).engine.flush():
        return PlainTextResponse("Cache flushed.\n")
    return PlainTextResponse("Flush cache failed: requests are running.\n", status_code=400)


async def metrics_text(request: Request) -> Response:
    """Prometheus, with --enable-metrics."""
    service = _service(request)
    if not service.options.enable_metrics:
        raise HTTPException(404)
    return PlainTextResponse(metrics(service))


async def packages() -> dict[str, str]:
    """Name and version of every installed package."""
    return {d.metadata["Name"]: d.version for d in distributions()}


async def generate(request: Request) -> Response:
    """SGLang's own API, streamed (cumulative text) or not."""
    service, asked = _service(request), await _body(request)
    sampling = asked.get("sampling_params") or {}
    prompt = asked.get("text", asked.get("input_ids"))
    if not isinstance(prompt, str | list):
        raise HTTPException(400, "either text or input_ids has to be given")
    began = asyncio.get_running_loop().time()
    name = uuid.uuid4().hex
    job, _ = service.submit(prompt, int(sampling.get("max_new_tokens") or _LIMIT))
    if asked.get("stream"):
        return StreamingResponse(generate_stream(job, name, began), media_type=STREAM)
    await finished(job)
    return JSONResponse({"text": text_of(job, 0, job.said), "meta_info": meta_info(job, name, began)})


async def completions(request: Request) -> Response:
    """OpenAI's API, streamed or not."""
    service, asked = _service(request), await _body(request)
    prompt = asked.get("prompt")
    if not isinstance(prompt, str | list):
        raise HTTPException(400, "prompt has to be given")
    job, number = service.submit(prompt, int(asked.get("max_tokens") or 16))
    if asked.get("stream"):
        return StreamingResponse(completion_stream(service, job, number, asked), media_type=STREAM)
    await finished(job)
    choice = {"index": 0, "text": text_of(job, 0, job.said), "finish_reason": job.finish}
    usage = usage_of(job, detailed=service.options.enable_cache_report)
    return JSONResponse({"object": "text_completion", "choices": [choice], "usage": usage})


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        raise HTTPException(400, "not JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "not a JSON object")
    return body
