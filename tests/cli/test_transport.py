"""The client's errors for wrong files and wrong answers."""

import httpx
import pytest

from edged.errors import ConfigError
from edged.rest import ApiError, Client
from edged.rest.transport import Transport


@pytest.mark.parametrize("which", ["ca", "cert"])
def test_a_file_that_is_no_certificate_is_named(tmp_path, which):
    file = tmp_path / "centre.pem"
    file.write_text("not PEM")
    with pytest.raises(ConfigError, match=r"centre\.pem is no PEM file"):
        Client("https://turbine-7:7443", **{which: str(file)})


@pytest.mark.parametrize("text", ['["bad gateway"]', "bad gateway", "7", ""])
def test_a_refusal_that_is_not_the_apis_is_an_error_with_its_status(text):
    client = Transport("http://turbine-7")
    client._http = httpx.Client(
        base_url="http://turbine-7",
        transport=httpx.MockTransport(lambda _: httpx.Response(502, text=text)),
    )
    with pytest.raises(ApiError) as found:
        client._call("GET", "/v1/jobs")
    assert found.value.status == 502
