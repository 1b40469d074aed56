"""A small Kubernetes API server on loopback: discovery, OpenAPI, apply; with a node, Jobs and pods.

It speaks what a real kubectl asks of it for `apply --server-side`, `get`, `delete`, `logs` and
`port-forward`. Objects are kept as they came; what a real server would refuse is refused by `refuse`, a
function of the object.

Sources: the Kubernetes API concepts pages (discovery, server-side apply, Status), kubectl's own requests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.support.kube_node import Node
from tests.support.spdy import Session

Json = dict[str, Any]

RESOURCES: dict[str, dict[str, str]] = {
    "v1": {
        "ConfigMap": "configmaps",
        "PersistentVolumeClaim": "persistentvolumeclaims",
        "Pod": "pods",
        "Service": "services",
    },
    "apps/v1": {"Deployment": "deployments"},
    "batch/v1": {"Job": "jobs"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
}
LEADER_WORKER_SET = {"leaderworkerset.x-k8s.io/v1": {"LeaderWorkerSet": "leaderworkersets"}}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """How the server says no. Source: apimachinery, pkg/apis/meta/v1 (Status)."""

    code: int
    reason: str
    message: str

    def status(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


NOT_FOUND = Refusal(code=404, reason="NotFound", message="the server could not find the requested resource")


@dataclass
class KubeApi:
    """The server. applied: path → object; asked: (method, path, query, field manager) of every change."""

    resources: dict[str, dict[str, str]] = field(default_factory=lambda: dict(RESOURCES))
    refuse: Callable[[Json], Refusal | None] = lambda _: None
    applied: dict[str, Json] = field(default_factory=dict)
    changes: list[tuple[str, dict[str, list[str]]]] = field(default_factory=list)
    node: Node | None = None
    url: str = ""

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, Json]:
        url = urlsplit(target)
        path = url.path.rstrip("/")
        if method == "GET":
            query = parse_qs(url.query)
            found = self._discovery(path) or self._object(path) or self._listed(path, query)
            return (200, found) if found else (404, NOT_FOUND.status())
        if method == "DELETE" and (gone := self.applied.pop(path, None)):
            if self.node is not None:
                self.node.remove(gone["metadata"]["name"])
            return 200, gone
        if method == "PATCH":
            return self._apply(path, parse_qs(url.query), yaml.safe_load(body))
        return 404, NOT_FOUND.status()

    def _apply(self, path: str, query: dict[str, list[str]], found: Json) -> tuple[int, Json]:
        self.changes.append((path, query))
        kinds = self.resources.get(found["apiVersion"], {})
        if f"/{kinds.get(found['kind'])}/{found['metadata']['name']}" not in path:
            return 404, NOT_FOUND.status()
        if refusal := self.refuse(found):
            return refusal.code, refusal.status()
        created = path not in self.applied
        stored = json.loads(json.dumps(found))
        stored["metadata"] |= {"uid": "0", "resourceVersion": str(len(self.changes))}
        if "dryRun" not in query:
            self.applied[path] = stored
            if self.node is not None and stored["kind"] == "Job":
                self.node.start(stored)
        return (201 if created else 200), stored

    def _objects(self) -> dict[str, Json]:
        pods = self.node.pods() if self.node is not None else []
        where = "/api/v1/namespaces/{namespace}/pods/{name}"
        return {**self.applied, **{where.format(**pod["metadata"]): pod for pod in pods}}

    def _object(self, path: str) -> Json | None:
        return self._objects().get(path)

    def _listed(self, path: str, query: dict[str, list[str]]) -> Json | None:
        """A collection, by label selector: `key` or `key=value`."""
        kinds = {name: (api, kind) for api, all_of in self.resources.items() for kind, name in all_of.items()}
        api, kind = kinds.get(path.rpartition("/")[2], ("", ""))
        if not api or not path.startswith(f"/{_api_path(api)}/namespaces/"):
            return None
        key, equals, value = query.get("labelSelector", [""])[0].partition("=")
        items = [
            found
            for where, found in self._objects().items()
            if where.rpartition("/")[0] == path
            and (not key or key in (labels := found["metadata"].get("labels", {})))
            and (not equals or labels[key] == value)
        ]
        return {"kind": f"{kind}List", "apiVersion": api, "metadata": {}, "items": items}

    def _discovery(self, path: str) -> Json | None:
        schemas = {
            _api_path(api): {"serverRelativeURL": f"/openapi/v3/{_api_path(api)}"} for api in self.resources
        }
        fixed: dict[str, Json] = {
            "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": self._groups()},
            "/openapi/v3": {"paths": schemas},
        }
        for api in self.resources:
            fixed[f"/{_api_path(api)}"] = self._list(api)
            fixed[f"/openapi/v3/{_api_path(api)}"] = self._openapi(api)
        return fixed.get(path)

    def _groups(self) -> list[Json]:
        groups = []
        for api in self.resources:
            name, slash, version = api.partition("/")
            if slash:
                this = {"groupVersion": api, "version": version}
                groups.append({"name": name, "versions": [this], "preferredVersion": this})
        return groups

    def _list(self, api: str) -> Json:
        resources = [
            {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": VERBS}
            for kind, name in self.resources[api].items()
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": resources}

    def _openapi(self, api: str) -> Json:
        """That its PATCH takes dryRun and fieldValidation, which is what kubectl looks for."""
        parameters = [{"name": name, "in": "query"} for name in ("dryRun", "fieldValidation", "fieldManager")]
        group, _, version = api.rpartition("/")
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": "v1.35.0"},
            "paths": {
                f"/{_api_path(api)}/namespaces/{{namespace}}/{name}/{{name}}": {
                    "patch": {
                        "parameters": parameters,
                        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
                    }
                }
                for kind, name in self.resources[api].items()
            },
            "components": {"schemas": {}},
        }


def _api_path(api: str) -> str:
    return f"apis/{api}" if "/" in api else f"api/{api}"


@contextmanager
def kube_api(**fields: Any) -> Iterator[KubeApi]:
    """A running server."""
    api = KubeApi(**fields)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _go(self) -> None:
            url = urlsplit(self.path)
            *_, pod, last = url.path.split("/")
            if api.node is not None and last == "portforward":
                self._forward(api.node, pod)
                return
            if api.node is not None and last == "log":
                self._send(200, "text/plain", api.node.log(pod).encode())
                return
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, answer = api.answer(self.command, self.path, body)
            self._send(code, "application/json", json.dumps(answer).encode())

        def _forward(self, node: Node, pod: str) -> None:
            """SPDY, as every kubectl can; newer ones ask for it over WebSocket first."""
            if self.headers.get("Upgrade", "").upper() != "SPDY/3.1":
                self._send(400, "text/plain", b"no such upgrade")
                return
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "SPDY/3.1")
            self.send_header("X-Stream-Protocol-Version", "portforward.k8s.io")
            self.end_headers()
            node.forward(pod, Session(self.rfile, self.connection))
            self.close_connection = True

        def _send(self, code: int, kind: str, data: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = _go

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        if api.node is not None:
            api.node.close()
        server.shutdown()
        server.server_close()
        thread.join()
