"""A simulator of SGLang's HTTP API: settable speed, accept length, noise and faults; no model and no GPU.

It stands by itself (FastAPI and uvicorn, nothing of imagebuilder), because it is also the server of the
`demo` image. Time is the running event loop's: on one with a virtual clock it simulates hours in a moment.
"""
