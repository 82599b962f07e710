"""`/`: the status page.  Its files contain no data and need no token; its script requests both.

The page may load only resources of this API and runs no inline script: a name chosen by a producer
or a job cannot become code.
"""

from pathlib import Path
from typing import Any

from fastapi.responses import Response

from api.openapi import says
from api.security import public

_public = public()
ROUTERS = (_public,)

_FOLDER = Path(__file__).parents[1] / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = ("page.css", "page.js", "live.js", "chart.js", "graph.js", "figures.js")
"""The files that the page loads, each as `/page/NAME`."""


def _serve(path: str, name: str) -> None:
    body, kind = (_FOLDER / name).read_bytes(), _TYPES[Path(name).suffix]

    async def page() -> Any:
        return Response(
            body, media_type=f"{kind}; charset=utf-8", headers={"Content-Security-Policy": _POLICY}
        )

    _public.add_api_route(
        path, page, responses=says(public=True), include_in_schema=False, response_model=None
    )


_serve("/", "page.html")
for _name in FILES:
    _serve(f"/page/{_name}", _name)
