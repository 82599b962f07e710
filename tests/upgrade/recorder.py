"""An HTTP server between a device and a collector that keeps requests and answers."""

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Recorder:
    """Passes requests on to the collector at `port`; `kept` has a dict for each, in the order of
    the answers: method, path, headers (edged's own), body, status, answer."""

    def __init__(self, port):
        self.kept, self._port = [], port
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                recorder.pass_on(self, body)

            do_PUT = do_POST = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def pass_on(self, handler, body):
        """Ask the collector and answer with what it says."""
        own = {k: v for k, v in handler.headers.items() if k.lower().startswith("x-edged-")}
        try:
            link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            link.request(handler.command, handler.path, body, own)
            reply = link.getresponse()
            status, answer, headers = reply.status, reply.read(), reply.getheaders()
            link.close()
        except OSError:
            handler.close_connection = True
            return
        made = json.loads(answer) if answer else None
        self.kept.append(
            {"method": handler.command, "path": handler.path, "headers": own, "body": body,
             "status": status, "answer": made}
        )  # fmt: skip
        handler.send_response(status)
        for name, value in headers:
            if name.lower().startswith("x-edged-"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
