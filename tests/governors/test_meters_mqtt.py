"""External meters by MQTT: against Mosquitto, and against servers that are none."""

import os
import shutil
import socket
import subprocess
import time
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.detect import detect
from governors.meters.base import survey
from governors.meters.external_mqtt import (
    BACKOFF_US,
    KEEPALIVE_S,
    MqttError,
    MqttFeed,
    packet,
    published,
    split,
)
from governors.meters.settings import External, MeterSettings
from governors.sysfs import Sysfs

SECOND = 1_000_000
DEADLINE_S = 120.0
MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def until(condition, what):
    """Poll until it holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def listener():
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(DEADLINE_S)
    return server


class Publisher:
    """The least that publishes at QoS 0: bytes put together by hand from the standard."""

    opened: ClassVar = []

    def __init__(self, port, user=b"", password=b""):
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self.opened.append(self.socket)
        flags = 0xC2 if user else 0x02
        body = b"\0\4MQTT\4" + bytes([flags]) + b"\0\0" + b"\0\4test"
        for word in (user, password) if user else ():
            body += len(word).to_bytes(2, "big") + word
        self.socket.sendall(b"\x10" + bytes([len(body)]) + body)
        assert self.socket.recv(4) == b"\x20\x02\0\0"

    def publish(self, topic, payload, retain=False):
        body = len(topic).to_bytes(2, "big") + topic + payload
        assert len(body) < 128
        self.socket.sendall(bytes([0x31 if retain else 0x30, len(body)]) + body)


class Broker:
    """A Mosquitto of its own."""

    def __init__(self, directory, lines=("allow_anonymous true",), port=None):
        if port is None:
            with listener() as free:
                port = free.getsockname()[1]
        self.port, self.config = port, directory / "mosquitto.conf"
        self.config.write_text("\n".join((f"listener {port} 127.0.0.1", "user root", *lines, "")))
        self.start()

    def start(self):
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self.config)], stdout=quiet, stderr=quiet
        )
        until(self.answers, "Mosquitto did not start")

    def answers(self):
        assert self.process.poll() is None, "Mosquitto ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(autouse=True)
def nothing_stays_open():
    yield
    while Publisher.opened:
        Publisher.opened.pop().close()


@pytest.fixture
def broker(tmp_path):
    if MOSQUITTO is None:
        pytest.skip("needs Mosquitto: sudo apt-get install mosquitto")
    running = Broker(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def feed_of():
    feeds = []

    def opened(port, **external):
        feeds.append(MqttFeed(External("plug", topic="plug/power", port=port, **external)))
        return feeds[-1]

    yield opened
    for feed in feeds:
        feed.close()


def told(feed, now_us=0):
    found = feed.latest(now_us)
    return None if found is None else found[0]


class TestMosquitto:
    def test_a_message_is_a_reading(self, broker, tmp_path):
        external = External("plug", topic="plug/power", port=broker.port, key="apower")
        sysfs = Sysfs(tmp_path)
        (meter,) = survey(sysfs, detect(sysfs), MeterSettings(externals=(external,))).meters
        publisher = Publisher(broker.port)

        def arrives():
            publisher.publish(b"plug/power", b'{"apower": 4.75}')
            publisher.publish(b"plug/other", b'{"apower": 99}')
            return meter.read(0)[0].watts == 4.75

        until(arrives, "no message came")
        meter.close()

    def test_a_retained_message_is_of_unknown_age_and_not_believed(self, broker, feed_of):
        publisher = Publisher(broker.port)
        publisher.publish(b"plug/power", b"99", retain=True)
        feed = feed_of(broker.port)

        def arrives():
            assert told(feed) != "99"
            publisher.publish(b"plug/power", b"5")
            return told(feed) == "5"

        until(arrives, "no message came")

    def test_a_broker_that_was_started_anew_is_found_again(self, broker, feed_of):
        feed, now_us = feed_of(broker.port), 0
        until(lambda: (feed.latest(0), feed._subscribed)[1], "not subscribed")
        broker.stop()
        until(lambda: (feed.latest(0), feed.problem.startswith("MQTT broker"))[1], "not noticed")
        broker.start()
        publisher = Publisher(broker.port)

        def arrives():
            nonlocal now_us
            now_us += BACKOFF_US
            publisher.publish(b"plug/power", b"6")
            return told(feed, now_us) == "6"

        until(arrives, "not found again")

    def test_it_stays_connected_by_keeping_alive(self, broker, feed_of):
        feed = feed_of(broker.port)
        until(lambda: (feed.latest(0), feed._subscribed)[1], "not subscribed")
        connection = feed._socket
        for minute in range(1, 20):
            feed.latest(minute * KEEPALIVE_S * SECOND)
        assert feed._socket is connection

    def test_a_wrong_password_is_told(self, tmp_path, feed_of):
        if MOSQUITTO is None:
            pytest.skip("needs Mosquitto: sudo apt-get install mosquitto")
        words = tmp_path / "words"
        subprocess.run(["mosquitto_passwd", "-b", "-c", words, "edged", "right"], check=True)
        broker = Broker(tmp_path, ("allow_anonymous false", f"password_file {words}"))
        try:
            wrong = feed_of(broker.port, username="edged", password="wrong")
            until(lambda: (wrong.latest(0), "refuses us" in wrong.problem)[1], "not told")
            right = feed_of(broker.port, username="edged", password="right")
            publisher = Publisher(broker.port, b"edged", b"right")

            def arrives():
                publisher.publish(b"plug/power", b"7")
                return told(right) == "7"

            until(arrives, "no message came")
        finally:
            broker.stop()


class TestServersThatAreNone:
    def answer(self, feed_of, content, problem):
        """A server that says `content` and nothing else."""
        with listener() as server:
            feed = feed_of(server.getsockname()[1])
            feed.latest(0)
            connection, _ = server.accept()
            with connection:
                connection.sendall(content)
                until(lambda: (feed.latest(0), problem in feed.problem)[1], feed.problem)
            assert feed.latest(1) is None

    def test_garbage(self, feed_of):
        self.answer(feed_of, b"\x30\xff\xff\xff\xff\xff\xff", "more than four bytes")

    def test_a_packet_without_end(self, feed_of):
        self.answer(feed_of, b"\x30\xff\xff\xff\x7f", "the limit is")

    def test_a_refusal(self, feed_of):
        self.answer(feed_of, b"\x20\x02\x00\x05", "refuses us (code 5)")

    def test_a_topic_that_is_refused(self, feed_of):
        self.answer(feed_of, b"\x20\x02\x00\x00\x90\x03\x00\x01\x80", "refuses plug/power")

    def test_a_message_that_is_shorter_than_its_topic(self, feed_of):
        self.answer(feed_of, b"\x20\x02\x00\x00\x30\x03\x00\x09x", "shorter than its topic")

    @pytest.mark.parametrize(("first", "believed"), [(b"\x30", "99"), (b"\x31", None)])
    def test_a_message_with_the_retained_bit_is_not_believed(self, feed_of, first, believed):
        message = first + b"\x0e\x00\x0aplug/power99"
        with listener() as server:
            feed = feed_of(server.getsockname()[1])
            feed.latest(0)
            connection, _ = server.accept()
            with connection:
                greeting = b"\x20\x02\x00\x00\x90\x03\x00\x01\x00"
                connection.sendall(greeting + message + b"\x30\xff\xff\xff\xff\xff")
                until(lambda: (feed.latest(0), "four bytes" in feed.problem)[1], feed.problem)
        assert told(feed, 1) == believed

    def test_one_that_hangs_up(self, feed_of):
        with listener() as server:
            feed = feed_of(server.getsockname()[1])
            feed.latest(0)
            server.accept()[0].close()
            until(lambda: (feed.latest(0), "MQTT broker" in feed.problem)[1], "not noticed")

    def test_one_that_never_answers(self, feed_of):
        with listener() as server:
            feed = feed_of(server.getsockname()[1])
            feed.latest(0)
            connection, _ = server.accept()
            with connection:
                feed.latest(60 * SECOND)
                assert "does not answer" in feed.problem

    def test_nobody_there_is_tried_again_only_after_a_while(self, feed_of):
        with listener() as server:
            port = server.getsockname()[1]
        feed = feed_of(port)
        until(lambda: (feed.latest(0), "refused" in feed.problem)[1], "not noticed")
        feed.latest(BACKOFF_US - 1)
        assert feed._socket is None

    def test_a_name_is_not_looked_up(self, feed_of):
        feed = feed_of(1883, broker="broker.example")
        assert feed.latest(0) is None
        assert "give the broker's address" in feed.problem

    @given(st.binary(max_size=300))
    def test_no_bytes_make_another_error(self, content):
        try:
            for first, body in split(bytearray(content)):
                published(first, body)
        except MqttError:
            pass

    @given(
        bodies=st.lists(st.binary(max_size=400), max_size=6),
        cuts=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    )
    def test_packets_are_whole_however_they_are_cut(self, bodies, cuts):
        content = b"".join(packet(0x30, body) for body in bodies)
        buffer, found, at = bytearray(), [], 0
        for cut in [*cuts, len(content)]:
            buffer += content[at : at + cut]
            at += cut
            found += [body for _, body in split(buffer)]
        assert found == bodies
        assert not buffer

    @pytest.mark.parametrize(
        ("length", "header"), [(127, "7f"), (128, "8001"), (16383, "ff7f"), (16384, "808001")]
    )
    def test_lengths_are_written_as_in_table_2_4_of_the_standard(self, length, header):
        assert packet(0x30, bytes(length))[1 : 1 + len(header) // 2].hex() == header


class Flood:
    """A broker that always has more to say."""

    said = 0

    def recv(self, most):
        message = packet(0x30, b"\0\1t" + b"5.0")
        self.said += 1
        return message * (most // len(message))


def test_a_broker_that_never_stops_talking_holds_nobody_up():
    feed, flood = MqttFeed(External("plug", topic="t")), Flood()
    feed._greeted = feed._subscribed = True
    with pytest.raises(MqttError, match="publish less"):
        feed._receive(flood, 0)
    assert flood.said < 20
