"""The web application: maps addresses to pages, and checks each request before its handler gets it."""

from __future__ import annotations

import html
import math
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import structlog
import trio
from jinja2 import DictLoader, Environment, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mq.client.errors import BrokerError, ClientError, TopicNotFound
from mq.client.net.credentials import Credentials, CredentialsInvalid
from mq.console import safety
from mq.console.change_records import Record, Records
from mq.console.guard import Guard
from mq.console.jobs import Jobs
from mq.console.live import Fragments, write_events
from mq.console.pages import (
    accounts,
    dead_letters,
    deletions,
    groups,
    members,
    messages,
    overview,
    pending,
    removals,
    sending,
    tail,
    topics,
)
from mq.console.pages.visit import Build, Change, Form, InputInvalid, NotFound, Page, Visit
from mq.console.sessions import LoginLimit, Session, Sessions
from mq.console.settings import ConsoleSettings
from mq.console.streamed_answers import StreamedResponse
from mq.console.users import LoginRefused, Users
from mq.console.views.links import link
from mq.console.views.text import duration, number, visible
from mq.console.watch import words_of
from mq.protocol.codes import ResponseCode
from mq.protocol.names import NameRefused

HERE: Final = Path(__file__).parent

PAGES: Final[Mapping[str, Build]] = {
    "/": overview.overview,
    "/alarms": overview.alarm_list,
    "/broker-group": overview.raft_group,
    "/members": members.members,
    "/member-change": members.preview,
    "/settings": overview.replica_settings,
    "/changes": overview.changes,
    "/readers": overview.readers,
    "/events": overview.event_list,
    "/topics": topics.topic_list,
    "/topic": topics.topic,
    "/new-topic": topics.new_topic,
    "/delete-topic": deletions.topic_preview,
    "/messages": messages.browse,
    "/message": messages.message,
    "/tail": tail.tail,
    "/send": sending.send_form,
    "/groups": groups.group_list,
    "/group": groups.group,
    "/reset": groups.reset_preview,
    "/delete-group": deletions.group_preview,
    "/remove-member": removals.preview,
    "/dead-letter-groups": dead_letters.group_list,
    "/dead-letters": dead_letters.letters,
    "/pending": pending.pending_list,
    "/schedules": pending.schedules,
    "/job": dead_letters.job_page,
    "/accounts": accounts.accounts,
    "/account": accounts.account,
}
CHANGES: Final[Mapping[str, tuple[str, Change]]] = {
    "/create-topic": ("create topic", topics.create),
    "/change-topic": ("change topic", topics.change),
    "/change-attribute": ("change attribute", topics.change_attribute),
    "/delete-topic": ("delete topic", deletions.delete_topic),
    "/send": ("send a message", sending.send),
    "/reset": ("reset offsets", groups.reset),
    "/enable": ("pause or resume group", groups.enable),
    "/delete-group": ("delete group", deletions.delete_group),
    "/remove-member": ("remove member", removals.remove),
    "/let-in": ("let a member in", removals.readmit),
    "/requeue": ("requeue dead letters", dead_letters.requeue),
    "/recall": ("recall a message", pending.recall),
    "/resume": ("resume a transaction", pending.resume),
    "/change-schedule": ("change schedule", pending.change_schedule),
    "/member-change": ("change members", members.make),
    "/create-user": ("create user", accounts.create),
    "/change-user": ("change user", accounts.change),
    "/delete-user": ("delete user", accounts.delete),
    "/set-quota": ("set quota", accounts.set_quota),
    "/put-policy": ("put policy", accounts.put_policy),
    "/delete-policy": ("delete policy", accounts.delete_policy),
    "/change-setting": ("change setting", overview.change_setting),
    "/transfer": ("transfer leadership", overview.transfer),
}

HTTP_UNKNOWN: Final = 404
UNKNOWING: Final = "The broker is one of Apache RocketMQ, or of an earlier release, and does not have that"
_REFUSALS: Final[Mapping[int, int]] = {
    ResponseCode.NO_PERMISSION: 403,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: HTTP_UNKNOWN,
}
"""The status of an answer to a change that a broker refuses; of any other code it is 502."""
USER_CHARACTERS_MAX: Final = 200
"""Characters of an access key that a failed login counts and logs: attackers may send more than memory holds."""

Log = structlog.stdlib.BoundLogger


class Console:
    """Serves the pages of a console, and has what all its requests share.

    Args:
        users: the logged-in users and their views.
        wall_clock_ms: milliseconds since 1970.
    """

    def __init__(self, settings: ConsoleSettings, users: Users, log: Log, wall_clock_ms: Callable[[], int]) -> None:
        self.settings = settings
        self._users = users
        self._log = log
        self._wall_clock_ms = wall_clock_ms
        self._jobs = Jobs()
        self._records = Records(log)
        self._limit = LoginLimit()
        self._sessions = Sessions(
            partial(secrets.token_urlsafe, 32),
            # Without a login nothing ends: a page on the wall of an office stays live.
            settings.session_seconds if settings.login else math.inf,
            settings.session_seconds_max if settings.login else math.inf,
            lambda session: users.leave(session.key),
        )
        self._fragments = Fragments(settings.streams_max)
        self._environment = Environment(
            # Read at the start: an update of the package would give this process the templates of another version.
            loader=DictLoader({path.name: path.read_text() for path in (HERE / "templates").iterdir()}),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {"visible": visible, "number": number, "duration": duration}
        self._environment.globals |= {"link": link}

    def app(self) -> ASGIApp:
        """Return the ASGI application."""
        routes = [
            *(Route(path, partial(self._page, build), methods=["GET"]) for path, build in PAGES.items()),
            *(Route(path, partial(self._change, *of), methods=["POST"]) for path, of in CHANGES.items()),
            Route("/login", self._login_form, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/export-dead-letters", self._export, methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            *(Route(f"/static/{name}", partial(_static, *of), methods=["GET"]) for name, of in static_files().items()),
        ]
        handlers: Any = {HTTPException: self._http_fault, Exception: _own_fault}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # it would name whatever host and scheme the request has
        return Guard(app, self.settings, self._log)

    # Pages.

    async def _page(self, build: Build, request: Request) -> Response:
        is_live = "live" in request.query_params
        session, is_new = await self._session(request, is_use=not is_live or not self.settings.login)
        if session is None:
            if is_live:
                return Response(status_code=401)
            return RedirectResponse(link("/login", next=_own_address(request)), status_code=303)
        visit = self._visit(session, dict(request.query_params))
        if is_live:
            return self._stream(build, visit, str(request.url.query))
        status, page = await self._build_page(build, visit)
        address = _own_address(request)
        live = f"{address}{'&' if '?' in address else '?'}live=1" if page.live and status == 200 else ""
        text = self._render("page.html", page, visit, live=live, address=address)
        session.notices.clear()
        response = HTMLResponse(text, status)
        if is_new:
            self._set_cookie(response, request, session.key)
        return response

    async def _build_page(self, build: Build, visit: Visit) -> tuple[int, Page]:
        try:
            return 200, await build(visit)
        except (NotFound, TopicNotFound) as error:
            return 404, _fault_page("There is no such thing", str(error))
        except (InputInvalid, NameRefused, ValueError) as error:
            return 400, _fault_page("That cannot be shown", str(error))
        except BrokerError as error:
            return _refusal(error)
        except ClientError as error:
            return 502, _fault_page("The servers do not answer", words_of(error))

    def _visit(self, session: Session, query: Mapping[str, str]) -> Visit:
        watch = self._users.watch_of(session.key)
        return Visit(query, session, watch, self.settings, self._jobs, self._records, self._wall_clock_ms)

    def _render(self, template: str, page: Page, visit: Visit, **more: object) -> str:
        values = {
            "page_template": page.template,
            "title": page.title,
            "session": visit.session,
            "login": self.settings.login,
            "may_change": self.settings.allow_changes,
            **more,
        }
        return self._environment.get_template(template).render(values | dict(page.values))

    def _stream(self, build: Build, visit: Visit, address: str) -> Response:
        session = visit.session

        async def fragment() -> str:
            _, page = await self._build_page(build, visit)
            return self._render(page.template, page, visit)

        def is_open() -> bool:
            is_use = not self.settings.login
            return self._sessions.find(session.key, trio.current_time(), is_use=is_use) is not None

        if self._fragments.is_full:
            return Response("too many open pages", status_code=503, headers={"retry-after": "60"})
        key = f"{session.key} {build.__module__}.{build.__qualname__} {address}"
        return StreamedResponse(
            partial(write_events, self._fragments, key, fragment, is_open), media_type="text/event-stream"
        )

    async def _export(self, request: Request) -> Response:
        session, _ = await self._session(request)
        if session is None:
            return RedirectResponse("/login", status_code=303)
        visit = self._visit(session, dict(request.query_params))
        if not (group := visit.query.get("group", "")):
            raise HTTPException(404, "the URL names no group")
        name = dead_letters.file_name(group)
        headers = {"content-disposition": f'attachment; filename="dead-letters-{name}"'}
        return StreamedResponse(partial(dead_letters.export, visit), media_type="application/x-ndjson", headers=headers)

    async def _healthz(self, request: Request) -> Response:
        del request
        return Response("ok\n", media_type="text/plain")

    # Changes.

    async def _change(self, name: str, change: Change, request: Request) -> Response:
        session, _ = await self._session(request)
        if session is None:
            return RedirectResponse("/login", status_code=303)
        visit = self._visit(session, dict(request.query_params))
        if not self.settings.allow_changes:
            fault = "this console only shows: whoever runs it has to allow changes with --allow-changes"
            return self._refuse(visit, 403, fault)
        form = await self._form(request)
        if (fault_of_form := self._fault_of(request, session, form)) is not None:
            self._log.warning("console_form_refused", change=name, user=session.user, reason=fault_of_form)
            return self._refuse(visit, 403, fault_of_form)
        target = " ".join(filter(None, (form.get("name") or form.get("group") or [""])))
        try:
            outcome = await change(visit, form)
        except (InputInvalid, NotFound, NameRefused, ValueError) as error:
            return self._fail(visit, name, target, str(error), 400)
        except ClientError as error:
            after = "" if error.stored == "no" else ": it may have been carried out all the same"
            status = _REFUSALS.get(error.code, 502) if isinstance(error, BrokerError) else 502
            before = f"{UNKNOWING}: " if status == HTTP_UNKNOWN else ""
            return self._fail(visit, name, target, f"{before}{error}{after}", status)
        visit.watch.forget_answers()
        self._records.add(Record(visit.now_ms, session.user, name, outcome.target, outcome.message or "begun", True))
        if outcome.message:
            session.notices.append(outcome.message)
        return RedirectResponse(outcome.to, status_code=303)

    def _fail(self, visit: Visit, name: str, target: str, why: str, status: int) -> Response:
        visit.watch.forget_answers()
        self._records.add(Record(visit.now_ms, visit.session.user, name, target, why, False))
        return self._refuse(visit, status, why, "That was not done")

    def _refuse(self, visit: Visit, status: int, why: str, title: str = "That is not possible") -> Response:
        text = self._render("page.html", _fault_page(title, why), visit, live="", address="")
        return HTMLResponse(text, status)

    def _fault_of(self, request: Request, session: Session, form: Form) -> str | None:
        fault = safety.origin_fault(dict(request.headers), secure=self.settings.is_secure)
        return fault or safety.token_fault(session, {name: values[-1] for name, values in form.items()})

    async def _form(self, request: Request) -> Form:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > safety.FORM_BYTES_MAX:
                raise HTTPException(413, "the form is too large")
        try:
            return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=2000)
        except ValueError as error:
            raise HTTPException(400, f"the form cannot be read: {error}") from error

    # Sessions.

    async def _session(self, request: Request, *, is_use: bool = True) -> tuple[Session | None, bool]:
        """The session of a request, and whether it is new: without a login, every browser gets one."""
        session = self._sessions.find(self._cookie_of(request), trio.current_time(), is_use=is_use)
        if session is not None or self.settings.login:
            return session, False
        session = self._sessions.begin("", trio.current_time())
        await self._users.enter(session.key, None)
        return session, True

    async def _login_form(self, request: Request) -> Response:
        return self._login_page(_local(request.query_params.get("next", "/")))

    def _login_page(self, to: str, fault: str = "", status: int = 200, user: str = "") -> Response:
        if not self.settings.login:
            return RedirectResponse("/", status_code=303)
        values = {"next": to, "fault": fault, "user": user}
        return HTMLResponse(self._environment.get_template("login.html").render(values), status)

    async def _login(self, request: Request) -> Response:
        if not self.settings.login:
            return RedirectResponse("/", status_code=303)
        form = await self._form(request)
        to, user = _local(_last(form, "next")), _last(form, "user").strip()
        if (fault := safety.origin_fault(dict(request.headers), secure=self.settings.is_secure)) is not None:
            return self._login_page(to, fault, 403)
        host = request.client.host if request.client is not None else "nowhere"
        user_text = user[:USER_CHARACTERS_MAX]
        keys = (f"host {host}", f"user {user_text}")
        wait = self._limit.wait_seconds(keys, trio.current_time())
        if wait > 0:
            response = self._login_page(to, f"too many failed logins: try again in {duration(wait)}", 429, user)
            response.headers["retry-after"] = str(int(wait) + 1)
            return response
        # Counted before it is checked: many at a time do not evade the limit.
        self._limit.on_failure(keys, trio.current_time())
        try:
            credentials = Credentials(user, _last(form, "secret"))
            await self._users.check(credentials)
        except (CredentialsInvalid, LoginRefused, ClientError) as error:
            self._log.warning("console_login_failed", user=user_text, host=host, reason=str(error))
            if isinstance(error, ClientError) and not isinstance(error, BrokerError | CredentialsInvalid):
                self._limit.uncount_failure(keys, trio.current_time())  # no server said that the key is wrong
                return self._login_page(to, words_of(error), 502, user)
            return self._login_page(to, str(error), 403, user)
        self._limit.uncount_failure(keys, trio.current_time())
        self._sessions.end(self._cookie_of(request))
        session = self._sessions.begin(user, trio.current_time())
        await self._users.enter(session.key, credentials)
        self._log.info("console_login", user=user, host=host)
        response = RedirectResponse(to, status_code=303)
        self._set_cookie(response, request, session.key)
        return response

    async def _logout(self, request: Request) -> Response:
        session, _ = await self._session(request)
        if session is not None:
            form = await self._form(request)
            if (fault := self._fault_of(request, session, form)) is not None:
                return self._refuse(self._visit(session, {}), 403, fault)
            self._sessions.end(session.key)
        response = RedirectResponse("/login" if self.settings.login else "/", status_code=303)
        self._set_cookie(response, request, "")
        return response

    def _cookie_of(self, request: Request) -> str:
        name = safety.cookie_name(request.headers.get("host", ""), secure=self.settings.is_secure)
        return request.cookies.get(name, "")

    def _set_cookie(self, response: Response, request: Request, key: str) -> None:
        host = request.headers.get("host", "")
        response.headers["set-cookie"] = safety.cookie(key, host, secure=self.settings.is_secure)

    async def _http_fault(self, request: Request, error: Exception) -> Response:
        del request
        assert isinstance(error, HTTPException)
        text = (
            f"<!doctype html><title>{error.status_code}</title><p>{html.escape(error.detail)}<p><a href=/>Overview</a>"
        )
        return HTMLResponse(text, error.status_code, headers=error.headers)


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the content and type of each file that pages load, by name."""
    types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    paths = [path for path in (HERE / "static").iterdir() if path.suffix in types]
    return {path.name: (path.read_bytes(), types[path.suffix]) for path in paths}


async def _own_fault(request: Request, error: Exception) -> Response:
    del request, error  # the log has it, see `Guard`
    return Response("This page has a fault, which is in the log of the console.\n", 500, media_type="text/plain")


async def _static(content: bytes, media_type: str, request: Request) -> Response:
    del request
    return Response(content, media_type=media_type)


def _fault_page(title: str, why: str) -> Page:
    return Page("fault.html", title, {"why": why}, live=False)


def _refusal(error: BrokerError) -> tuple[int, Page]:
    if error.code == ResponseCode.NO_PERMISSION:
        return 403, _fault_page("The broker does not allow that", error.remark or str(error))
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return HTTP_UNKNOWN, _fault_page("This broker does not know that", f"{UNKNOWING}: {error}")
    return 502, _fault_page("The broker refused that", str(error))


def _own_address(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


def _local(address: str) -> str:
    """An address of this console; the overview for any other: ``//host`` and ``/\\host`` are other sites."""
    is_own = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if is_own and address.partition("?")[0] in PAGES else "/"


def _last(form: Form, name: str) -> str:
    return (form.get(name) or [""])[-1]
