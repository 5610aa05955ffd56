"""A model that ends every episode at once, in a process of its own that dies of SIGKILL at one of its requests.

python server_child.py PORT DIES_AT
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count

MESSAGE = {"role": "assistant", "content": "so"}
BODY = {
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 512},
}
REQUESTS = count(1)


class Listener(HTTPServer):
    request_queue_size = 64


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        if next(REQUESTS) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        self.rfile.read(int(self.headers["content-length"]))
        answer = json.dumps(BODY).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = Listener(("127.0.0.1", int(sys.argv[1])), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
