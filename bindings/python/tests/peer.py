"""What may answer at an address in place of a service: something that speaks HTTP, and something that has only a socket."""

import http.server
import socket
import threading
import time


class Peer(http.server.ThreadingHTTPServer):
    """Counts connections and requests, and answers as it is told."""

    def __init__(self, answer):
        self.connections, self.paths = 0, []
        peer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                peer.connections += 1
                super().setup()

            def do_POST(self):
                peer.paths.append(self.path)
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                answer(self)

            do_GET = do_DELETE = do_POST

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, *_):
        pass  # Who asked has gone away.

    @property
    def requests(self):
        return len(self.paths)

    def stop(self):
        self.shutdown()
        self.server_close()


def answering(body, close=False, status=200, **headers):
    def answer(handler):
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = close

    return answer


class Raw:
    """Hands each connection on, with its number from 0."""

    def __init__(self, serve):
        self.requests = 0
        self.connections = []
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._take, args=(connection, len(self.connections) - 1), daemon=True).start()

    def _take(self, connection, number):
        with connection:
            try:
                self._serve(self, connection, number)
            except OSError:
                pass

    def read_request(self, connection):
        """Whether there is another."""
        got = b""
        while b"\r\n\r\n" not in got:
            piece = connection.recv(1 << 16)
            if not piece:
                return False
            got += piece
        head, _, body = got.partition(b"\r\n\r\n")
        lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        while len(body) < sum(lengths):
            body += connection.recv(1 << 16)
        self.requests += 1
        return True

    def stop(self):
        # A listener that is only closed still waits in `accept`.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def dripping(start, drop):
    """Reads a request, sends a start, and then the same again and again, byte by byte, without end."""

    def serve(raw, connection, _number):
        raw.read_request(connection)
        connection.sendall(start)
        while True:
            for place in range(len(drop)):
                connection.sendall(drop[place : place + 1])
                time.sleep(0.03)

    return serve


def reply(body):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
