"""An authority that a user names is trusted by every Python alike."""

import ssl
import subprocess

import pytest

from edged.platform.trust import trusting


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """The folder of a home-made authority, whose certificate does not say what its key is for, and
    of a server's certificate that it has signed."""
    at = tmp_path_factory.mktemp("authority")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE",
              "-addext", "subjectAltName=DNS:centre.example"]  # fmt: skip
    for name, more in (("ca", []), ("server", signed), ("stranger", [])):
        subprocess.run(
            ["openssl", "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem",
             "-subj", f"/CN={name}", *more],
            check=True, capture_output=True, cwd=at,
        )  # fmt: skip
    return at


def handshake(client, folder, name="centre.example"):
    """A handshake in memory with the server of this authority.  Raises ssl.SSLError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, True)]
    while ends:
        for end in tuple(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue


@pytest.fixture
def strict(monkeypatch):
    """Contexts as Python 3.13 makes them."""
    made = ssl.create_default_context

    def create(**options):
        context = made(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create)


def test_an_authority_without_key_usage_is_trusted_with_the_strictness_of_python_3_13(
    authority, strict
):
    ca = str(authority / "ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError, match="key usage"):
        handshake(ssl.create_default_context(cafile=ca), authority)
    handshake(trusting(ca), authority)


def test_names_and_signatures_are_checked_all_the_same(authority, strict):
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(trusting(str(authority / "ca.pem")), authority, "other.example")
    for wrong in (str(authority / "stranger.pem"), None):
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            handshake(trusting(wrong), authority)


def test_the_systems_authorities_are_checked_as_python_does(strict):
    assert trusting(None).verify_flags & ssl.VERIFY_X509_STRICT


def test_a_file_without_certificates_is_refused(tmp_path):
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(OSError):
        trusting(str(tmp_path / "empty.pem"))
