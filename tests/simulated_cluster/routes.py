"""The API server's HTTP side: which path and verb does what to the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from tests.simulated_cluster.claim_status import APPLY
from tests.simulated_cluster.discovery import DISCOVERY
from tests.simulated_cluster.faults import spoil
from tests.simulated_cluster.journal import Request
from tests.simulated_cluster.patching import patched
from tests.simulated_cluster.refusals import Refused, another_uid, invalid, not_found
from tests.simulated_cluster.selectors import selected
from tests.simulated_cluster.store import GROUPS, KINDS, Key, Object
from tests.simulated_cluster.watching import Stream, asked

if TYPE_CHECKING:
    from tests.simulated_cluster.api_server import ApiServer

LARGEST_BODY = 3 << 20  # bytes, as the real server
BODY = web.RequestKey("body", object)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(server: ApiServer) -> web.Application:
    routes = Routes(server)
    app = web.Application(middlewares=[routes.around], client_max_size=LARGEST_BODY)
    namespaced = "/api/v1/namespaces/{namespace}/{plural:pods|events}"
    plain = "/api/v1/{plural:nodes}"
    add = app.router.add_route
    add("GET", "/api/v1/{plural:nodes|pods|events}", routes.list)
    add("GET", namespaced, routes.list)
    add("POST", plain, routes.create)
    add("POST", namespaced, routes.create)
    for collection in (plain, namespaced):
        add("GET", collection + "/{name}", routes.read)
        add("GET", collection + "/{name}/{part:status}", routes.read)
        add("PATCH", collection + "/{name}", routes.patch)
        add("PATCH", collection + "/{name}/{part:status}", routes.patch)
        add("DELETE", collection + "/{name}", routes.delete)
    add("POST", "/api/v1/namespaces/{namespace}/pods/{name}/eviction", routes.evict)
    slices = "/apis/resource.k8s.io/v1/{plural:resourceslices}"
    add("GET", slices, routes.list)
    add("POST", slices, routes.create)
    add("GET", slices + "/{name}", routes.read)
    add("PUT", slices + "/{name}", routes.replace)
    add("DELETE", slices + "/{name}", routes.delete)
    claims = "/apis/resource.k8s.io/v1/namespaces/{namespace}/{plural:resourceclaims}"
    add("GET", "/apis/resource.k8s.io/v1/{plural:resourceclaims}", routes.list)
    add("GET", claims, routes.list)
    add("POST", claims, routes.create)
    add("GET", claims + "/{name}", routes.read)
    add("PATCH", claims + "/{name}/{part:status}", routes.patch_claim_status)
    add("DELETE", claims + "/{name}", routes.delete)
    add("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", routes.review)
    add("GET", "/apis/node.k8s.io/v1/runtimeclasses/{name}", routes.runtime_class)
    for path, answer in DISCOVERY.items():
        add("GET", path, _always(answer))
    return app


def _always(answer: object) -> Handler:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)

    return respond


class Routes:
    """One method for each verb, and what goes around them all."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._store = server.store

    # --- around every request -------------------------------------------------------------------

    @web.middleware
    async def around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note the request, spoil it where ordered, check who asks, turn refusals into answers."""
        note, unreadable = await self._note(request)
        self._server.requests.append(note)
        try:
            response = await self._answered(request, note, handler, unreadable)
        except Refused as refused:
            response = _refusal(refused)
        except web.HTTPMethodNotAllowed:
            response = _refusal(Refused(405, "the server does not allow this method here"))
        except web.HTTPNotFound:
            response = _refusal(Refused(404, "the server could not find the requested resource"))
        note.status = response.status
        return response

    async def _answered(
        self, request: web.Request, note: Request, handler: Handler, unreadable: Refused | None
    ) -> web.StreamResponse:
        fault = self._server.faults.take(note.method, note.path, watch=note.watch)
        if fault is not None:
            spoilt = await spoil(request, fault, self._server.faults)
            if spoilt is not None:
                return spoilt
        if self._server.latency:
            await asyncio.sleep(self._server.latency)
        self._server.access.check(note)
        if unreadable is not None:
            raise unreadable
        request[BODY] = note.body
        return await handler(request)

    async def _note(self, request: web.Request) -> tuple[Request, Refused | None]:
        body, unreadable = None, None
        try:
            text = await request.read()
            body = json.loads(text) if text else None
        except web.HTTPRequestEntityTooLarge:
            unreadable = Refused(413, f"Request entity too large: limit is {LARGEST_BODY}")
        except ValueError as error:
            unreadable = Refused(400, f"error decoding the body: {error}")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return (
            Request(
                request.method,
                request.path,
                dict(request.query),
                request.content_type if request.can_read_body or body is not None else "",
                body,
                asyncio.get_running_loop().time(),
                token if scheme == "Bearer" else "",
            ),
            unreadable,
        )

    # --- the verbs ------------------------------------------------------------------------------

    async def list(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = request.match_info["plural"], request.match_info.get("namespace", "")
        query = request.query
        matches = selected(plural, query.get("fieldSelector", ""), query.get("labelSelector", ""))
        if query.get("watch") in {"true", "1"}:
            wanted = asked(plural, namespace, matches, query)
            watch = Stream(
                request,
                wanted,
                self._store,
                self._server.faults,
                bookmarks=self._server.bookmark_seconds,
                latency=self._server.latency,
                progress=self._server.progress,
            )
            return await watch.run()
        return web.json_response(
            {
                "kind": f"{KINDS[plural]}List",
                "apiVersion": GROUPS.get(plural, "v1"),
                "metadata": {"resourceVersion": str(self._store.version)},
                "items": [
                    # Of what kind they are the list says: only objects alone say it themselves.
                    {key: value for key, value in one.items() if key not in {"kind", "apiVersion"}}
                    for one in self._store.all(plural, namespace)
                    if matches(one)
                ],
            }
        )

    async def read(self, request: web.Request) -> web.Response:
        return web.json_response(self._store.get(_key(request)))

    async def create(self, request: web.Request) -> web.Response:
        plural, namespace = request.match_info["plural"], request.match_info.get("namespace", "")
        body = _object(request)
        named = (body.get("metadata") or {}).get("namespace")
        if named not in {None, "", namespace}:
            raise Refused(
                400,
                "the namespace of the provided object does not match the namespace sent on the "
                "request",
            )
        if plural == "events":
            _check_event(body, namespace)
            body = {"eventTime": None, "reportingComponent": "", "reportingInstance": "", **body}
        if plural in {"nodes", "resourceclaims"}:
            body = {"spec": {}, "status": {}, **body}
        if plural == "resourceslices":
            body = self._server.slices.admitted(body)
        if plural == "pods":
            body = {**body, "status": {"phase": "Pending"}}  # only the kubelet says more
        return web.json_response(self._store.create(plural, namespace, body), status=201)

    async def patch(self, request: web.Request) -> web.Response:
        key, status = _key(request), "part" in request.match_info

        def edit(found: Object) -> Object:
            kind, body = KINDS[key.plural], request[BODY]
            after: Object = patched(kind, found, request.content_type, body)
            return _kept_apart(key.plural, found, after, status=status)

        dry_run = request.query.get("dryRun") == "All"
        return web.json_response(self._store.change(key, edit, dry_run=dry_run))

    async def patch_claim_status(self, request: web.Request) -> web.Response:
        """Of a ResourceClaim: by server-side apply, as the agent does, or by a scheduler."""
        if request.content_type != APPLY:
            return await self.patch(request)
        body, manager = _object(request), request.query.get("fieldManager", "")

        def edit(found: Object) -> Object:
            return self._server.claims.applied(found, body, manager)

        return web.json_response(self._store.change(_key(request), edit))

    async def replace(self, request: web.Request) -> web.Response:
        """An update of the whole object (a ResourceSlice), which has to name its version."""
        body = self._server.slices.admitted(_object(request))

        def edit(found: Object) -> Object:
            self._server.slices.check_update(found, body)
            kept = {k: found["metadata"][k] for k in ("uid", "creationTimestamp")}
            return {**body, "metadata": {**body["metadata"], **kept}}

        return web.json_response(self._store.change(_key(request), edit))

    async def delete(self, request: web.Request) -> web.Response:
        key = _key(request)
        body = request[BODY]
        options = body if isinstance(body, dict) else {}
        found = self._store.get(key)
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted not in {None, found["metadata"]["uid"]}:
            raise another_uid(KINDS[key.plural], key.name, wanted, found["metadata"]["uid"])
        if key.plural == "pods":
            return web.json_response(self._server.pods.delete(key))
        deleted = self._store.delete(key)
        if key.plural in GROUPS:
            return web.json_response(deleted)
        details = {"name": key.name, "kind": key.plural, "uid": found["metadata"]["uid"]}
        return web.json_response(_success(details))

    async def evict(self, request: web.Request) -> web.Response:
        key = Key("pods", request.match_info["namespace"], request.match_info["name"])
        body = _object(request)
        if (body.get("apiVersion"), body.get("kind")) != ("policy/v1", "Eviction"):
            raise Refused(
                400, "the object provided is unrecognized: an Eviction of policy/v1 is due"
            )
        self._server.pods.evict(key, body)
        return web.json_response(_success(), status=201)

    async def runtime_class(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._server.runtime_classes:
            raise not_found("runtimeclasses", name)
        return web.json_response({"kind": "RuntimeClass", "metadata": {"name": name}})

    async def review(self, request: web.Request) -> web.Response:
        body = _object(request)
        asked = body["spec"]["resourceAttributes"]
        below = f"/{asked['subresource']}" if asked.get("subresource") else ""
        right = asked["verb"], asked["resource"] + below
        allowed = right not in self._server.access.withheld
        said = {name: value for name, value in asked.items() if value}
        answer = {
            "metadata": {},
            "spec": {"resourceAttributes": said},
            "status": {"allowed": allowed},
        }
        return web.json_response({**body, **answer}, status=201)


def _refusal(refused: Refused) -> web.Response:
    return web.json_response(refused.status(), status=refused.code, headers=refused.headers)


def _key(request: web.Request) -> Key:
    info = request.match_info
    return Key(info["plural"], info.get("namespace", ""), info["name"])


def _object(request: web.Request) -> Object:
    body = request[BODY]
    if not isinstance(body, dict):
        raise Refused(400, "the body has to be an object")
    return body


def _success(details: Object | None = None) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        **({"details": details} if details else {"code": 201}),
    }


def _check_event(body: Object, namespace: str) -> None:
    """An event is in the namespace of what it is about; one about a Node in `default`."""
    about = (body.get("involvedObject") or {}).get("namespace", "")
    if (about or "default") != namespace:
        raise invalid(
            "Event",
            (body.get("metadata") or {}).get("name", ""),
            f'involvedObject.namespace: Invalid value: "{about}": does not match event.namespace',
        )


def _kept_apart(plural: str, before: Object, after: Object, *, status: bool) -> Object:
    """The status path never changes spec, the main path never status; both change metadata."""
    if plural == "events":
        return after
    other = "spec" if status else "status"
    if other in before:
        after[other] = before[other]
    else:
        after.pop(other, None)
    return after
