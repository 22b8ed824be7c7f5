#!/usr/bin/env python3
"""Workers that pull, over real llama.cpp replicas: three agents, of which one is killed, and an AI Horde worker.

  pull.py --maitred BINARY --gateway URL --admin URL --broker URL --token-file FILE --engine NAME=URL=PID ...

What is shown, in this order: streams through all three; a job of an agent that is killed before a byte of the answer is
finished by another; a stream whose agent is killed within it ends with an error event; an engine stops when the client
leaves; a chat is answered by a worker that speaks the AI Horde's API, and both count its prompt alike. Engines are held
still (SIGSTOP) where an agent must die at a certain moment, so nothing depends on how fast they are. Exit status 1 if
anything is not as it must be. Needs: nothing but Python.
"""
import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

PATIENCE = 60


def call(url, body=None, method=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read() or b"null")


def until(what, condition):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.05)
    return found


class Engine:
    def __init__(self, text):
        self.name, self.url, pid = text.split("=")
        self.pid = int(pid)

    @contextlib.contextmanager
    def held_still(self):
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def busy(self):
        return any(slot["is_processing"] for slot in call(self.url + "/slots"))


class Stream:
    """A streamed chat, read as it comes."""

    def __init__(self, gateway, text, tokens):
        url = urllib.parse.urlsplit(gateway)
        self.connection = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": True,
                "ignore_eos": True, "temperature": 0}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        self.text, self.broken = "", False

    def begin(self):
        self.answer = self.connection.getresponse()
        return self.answer

    def read(self, enough=lambda text: False):
        """Reads until it is enough, or ends."""
        try:
            while not enough(self.text):
                # Not readline: it takes a transfer that was cut for one that ended.
                piece = self.answer.read1(1 << 16)
                if not piece:
                    break
                self.text += piece.decode()
        except (http.client.IncompleteRead, ConnectionError):
            self.broken = True
        return self.text

    def leave(self):
        self.answer.close()
        self.connection.close()


class Room:
    def __init__(self, args):
        self.args = args
        self.engines = [Engine(text) for text in args.engine]
        self.agents = {}
        self.failures = []

    def start(self, engine):
        self.agents[engine.name] = subprocess.Popen(
            [self.args.maitred, "agent", "--broker", self.args.broker, "--token-file", self.args.token_file,
             "--name", engine.name, "--slots", "4", "--engine", engine.url],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(f"{engine.name} asks", lambda: self.pull(engine.name).get("polls") == 4)

    def kill(self, engine):
        agent = self.agents.pop(engine.name)
        agent.kill()
        agent.wait()

    def pull(self, name):
        workers = call(self.args.admin + "/workers")["workers"]
        return next((w["pull"] for w in workers if w["name"] == name), {})

    def only(self, name):
        """New requests go to this worker alone; None: to all."""
        for worker in call(self.args.admin + "/workers")["workers"]:
            verb = "resume" if name in (None, worker["name"]) else "drain"
            call(f"{self.args.admin}/workers/{worker['name']}/{verb}", {}, "POST")

    def metric(self, start):
        with urllib.request.urlopen(self.args.admin + "/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))

    def check(self, what, good, seen=""):
        print(f"  {'ok    ' if good else 'FAILED'}  {what}" + ("" if good else f": {seen}"), flush=True)
        if not good:
            self.failures.append(what)


def streams_through_all(room):
    streams = [Stream(room.args.gateway, f"Request {n}, of no importance.", 24) for n in range(24)]
    served = {}
    for stream in streams:
        answer = stream.begin()
        whole = stream.read()
        worker = answer.getheader("x-maitred-worker")
        if answer.status == 200 and whole.endswith("data: [DONE]\n\n") and not stream.broken:
            served[worker] = served.get(worker, 0) + 1
        else:
            room.check("a stream", False, f"{answer.status} {whole[-300:]}")
    names = {engine.name for engine in room.engines}
    room.check(f"24 streams, by each of the three: {served}", sum(served.values()) == 24 and set(served) == names, served)


def killed_before_a_byte(room):
    engine = room.engines[0]
    room.only(engine.name)
    with engine.held_still():
        stream = Stream(room.args.gateway, "Who finishes this?", 16)
        until("the job is out", lambda: room.pull(engine.name).get("jobs") == 1)
        room.only(None)
        room.kill(engine)
        answer = stream.begin()
        whole = stream.read()
    worker, attempts = answer.getheader("x-maitred-worker"), answer.getheader("x-maitred-attempts")
    room.check(f"killed before a byte: finished by {worker}, attempt {attempts}",
               whole.endswith("data: [DONE]\n\n") and worker != engine.name and attempts == "2", whole[-300:])
    requeues = room.metric('maitred_pull_requeues_total{pool="default",cause="broken"}')
    room.check("counted as given to another once", requeues == 1, requeues)
    room.start(engine)


def killed_within(room):
    engine = room.engines[1]
    room.only(engine.name)
    stream = Stream(room.args.gateway, "Tell me much.", 3000)
    stream.begin()
    stream.read(lambda text: text.count("data: ") >= 3)
    with engine.held_still():
        room.kill(engine)
        whole = stream.read()
    last = [line for line in whole.splitlines() if line.startswith("data: ")][-1]
    error = "[DONE]" not in whole and json.loads(last[6:]).get("error")
    room.check("killed within a stream: an error event, and the transfer is cut", bool(error) and stream.broken, last)
    room.only(None)
    until("the engine is free", lambda: not engine.busy())
    room.start(engine)


def client_leaves(room):
    engine = room.engines[2]
    room.only(engine.name)
    stream = Stream(room.args.gateway, "Tell me much, too.", 3000)
    stream.begin()
    stream.read(lambda text: "data: " in text)
    busy = engine.busy()
    stream.leave()
    start = time.monotonic()
    until("the engine is free", lambda: not engine.busy())
    room.check(f"the client leaves: the engine stops after {1000 * (time.monotonic() - start):.0f} ms", busy, "it was not busy")
    until("no job", lambda: room.pull(engine.name).get("jobs") == 0)
    room.only(None)


def horde_worker(room):
    with open(room.args.token_file) as file:
        key = {"apikey": file.read().strip()}
    api = room.args.broker + "/api/v2/generate/text/"
    ask = {"name": "Scribe 1", "models": ["tiny-llama"], "max_length": 256, "max_context_length": 2048, "threads": 1}
    call(api + "pop", ask, headers=key)
    name = next(w["name"] for w in call(room.args.admin + "/workers")["workers"] if w["pull"]["api"] == "horde")
    room.only(name)
    said = {}

    def chat():
        body = {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Name a tree."}],
                "max_tokens": 16, "temperature": 0}
        said.update(call(room.args.gateway + "/v1/chat/completions", body))

    client = threading.Thread(target=chat)
    client.start()
    job = until("a job", lambda: (job := call(api + "pop", ask, headers=key)) and job["id"] and job)
    payload = job["payload"]
    made = call(room.engines[0].url + "/completion", {
        "prompt": payload["prompt"], "n_predict": payload["max_length"], "temperature": payload["temperature"],
        "stop": payload.get("stop_sequence", []), "cache_prompt": False, "ignore_eos": True})
    reward = call(api + "submit", {"id": job["id"], "generation": made["content"]}, headers=key)["reward"]
    client.join(PATIENCE)
    room.only(None)
    usage = said.get("usage") or {}
    room.check(f"a chat by a Horde worker (reward {reward})",
               said.get("object") == "chat.completion" and said["choices"][0]["message"]["content"] is not None, said)
    room.check(f"its prompt counted alike: {usage.get('prompt_tokens')} tokens",
               usage.get("prompt_tokens") == made["tokens_evaluated"], (usage, made["tokens_evaluated"]))


def main():
    parser = argparse.ArgumentParser()
    for name in ("maitred", "gateway", "admin", "broker", "token-file"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--engine", action="append", required=True)
    room = Room(parser.parse_args())
    start = time.monotonic()
    try:
        for engine in room.engines:
            room.start(engine)
        for part in (streams_through_all, killed_before_a_byte, killed_within, client_leaves, horde_worker):
            part(room)
    finally:
        for agent in room.agents.values():
            agent.terminate()
        for agent in room.agents.values():
            agent.wait(PATIENCE)
    until("no pulled job", lambda: room.metric("maitred_pull_jobs{") == 0)
    print(f"  {time.monotonic() - start:.0f} s")
    sys.exit(1 if room.failures else 0)


if __name__ == "__main__":
    main()
