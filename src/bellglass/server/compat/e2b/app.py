"""E2B's API put together in front of the native application."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bellglass.server.compat.e2b.actions import application
from bellglass.server.compat.e2b.control.lists import routes as list_routes
from bellglass.server.compat.e2b.control.observed import routes as observed_routes
from bellglass.server.compat.e2b.control.refused import routes as refused_routes
from bellglass.server.compat.e2b.control.sandboxes import routes as sandbox_routes
from bellglass.server.compat.e2b.control.templates import routes as template_routes
from bellglass.server.compat.e2b.envd import app as envd
from bellglass.server.compat.e2b.interpreter import app as interpreter
from bellglass.server.compat.e2b.routing import ENVD_PORT, INTERPRETER_PORT, Front, Serve
from bellglass.server.http.context import App
from bellglass.server.services import Services

FEATURES = (list_routes, observed_routes, sandbox_routes, template_routes, refused_routes)
PORTS: Mapping[int, Serve] = {ENVD_PORT: envd.serve, INTERPRETER_PORT: interpreter.serve}
"""What answers in place of a program of the sandbox: ENVD_PORT and INTERPRETER_PORT of routing."""


def in_front_of(native: App, services: Callable[[], Services]) -> App:
    control = application([route for feature in FEATURES for route in feature.routes], services)
    return Front(native, control, services, PORTS)
