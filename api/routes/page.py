"""`/`, the status page, and `/docs`, the reference of the API.

Their files contain no data and need no token; their scripts request both.  `api.docs = false` turns
the reference off.  A page may load only resources of this API and runs no inline script: a name
chosen by a producer or a job cannot become code.
"""

from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from api import context
from api.openapi import says
from api.problems import ApiProblem
from api.security import public

_public = public()
ROUTERS = (_public,)

_FOLDER = Path(__file__).parents[1] / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DOCS = "/docs"
FILES = ("page.css", "page.js", "live.js", "chart.js", "graph.js", "figures.js", "access.js",
         "docs.css", "docs.js")  # fmt: skip
"""The files that the pages load, each as `/page/NAME`."""


def _serve(path: str, name: str) -> None:
    body, kind = (_FOLDER / name).read_bytes(), _TYPES[Path(name).suffix]

    async def page(request: Request) -> Any:
        if path == DOCS and not context.of(request).settings.docs:
            raise ApiProblem(
                "not-found",
                "the reference of the API is turned off",
                "set api.docs = true, or read /v1/openapi.json",
            )
        return Response(
            body, media_type=f"{kind}; charset=utf-8", headers={"Content-Security-Policy": _POLICY}
        )

    _public.add_api_route(
        path, page, responses=says(public=True), include_in_schema=False, response_model=None
    )


_serve("/", "page.html")
_serve(DOCS, "docs.html")
for _name in FILES:
    _serve(f"/page/{_name}", _name)
