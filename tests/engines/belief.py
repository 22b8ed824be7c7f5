#!/usr/bin/env python3
"""Compare what the gateway believed to be cached with what real engines found in their caches.

Sends mixed conversations through a gateway (of token ids; with --chat, of messages, which the gateway must render and
tokenise as the engine does): turns that grow, shared openings, cache salts, adapters; more of them than the caches hold,
so that blocks are evicted. Then reads the gateway's records and prints how far predicted
and actual cached tokens lie apart. Exit code 1: a request failed, or fewer than --target percent of the requests whose
worker's events were complete lie within one block.
"""
import argparse
import collections
import concurrent.futures
import glob
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request


def post(url, body, headers):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


# Texts are made of these; the numbers between them keep conversations apart.
WORDS = (
    "the guest asks whether a table by the window is free at eight and the waiter looks into the book of the house "
    "please bring bread, olives and water first; then {\"dish\": \"soup\", \"count\": 2} as on the list. Größe, naïve, 東京"
).split()


def text(rng, words):
    return " ".join(rng.choice(WORDS) if rng.random() < 0.8 else str(rng.randrange(10_000)) for _ in range(words))


class Conversation:
    def __init__(self, number, options, openings, rng):
        self.name = f"{options.tag}-{number}"
        self.rng = rng
        self.options = options
        self.model = rng.choice([options.model] * 4 + options.adapter)
        self.salt = rng.choice([None] * 4 + ["salt-a", "salt-b"]) if options.salts else None
        self.ids = list(rng.choice(openings)) if rng.random() < 0.7 else []
        self.turns = rng.randint(2, options.turns)

        # Equal openings are equal texts.
        opening = text(random.Random(self.ids[0]), 1 + len(self.ids) // 3) if self.ids else None
        self.messages = [{"role": "system", "content": opening}] if opening else []

    def new(self, count):
        return [self.rng.randrange(10, self.options.vocabulary) for _ in range(count)]

    def turn(self):
        body = {"model": self.model, "max_tokens": self.rng.randint(1, 48), "temperature": 0}
        if self.salt:
            body["cache_salt"] = self.salt
        more = self.rng.randint(20, 260)
        answer = self.chat(body, more) if self.options.chat else self.complete(body, more)
        self.turns -= 1
        return self.turns > 0 and answer["usage"]["total_tokens"] < self.options.longest

    def complete(self, body, more):
        self.ids += self.new(more)
        body["prompt"] = self.ids
        if self.options.answer_ids:
            body["return_token_ids"] = True
        answer = post(self.options.gateway + "/v1/completions", body, {"x-session-id": self.name})
        self.ids += answer["choices"][0].get("token_ids") or self.new(10)
        return answer

    def chat(self, body, more):
        self.messages.append({"role": "user", "content": text(self.rng, 1 + more // 3)})
        body["messages"] = self.messages
        answer = post(self.options.gateway + "/v1/chat/completions", body, {"x-session-id": self.name})
        said = answer["choices"][0]["message"]["content"] or ""
        self.messages.append({"role": "assistant", "content": said})
        return answer


def run(options, count, seed):
    """Sends this many requests; the number of failed ones."""
    rng = random.Random(seed)
    openings = [[rng.randrange(10, options.vocabulary) for _ in range(n)] for n in (96, 250, 515)]
    lock, failed, left, made = threading.Lock(), [], [count], [0]
    waiting = collections.deque()

    def next_one():
        with lock:
            if left[0] <= 0:
                return None
            left[0] -= 1
            # Some come back at once, some after all others.
            while len(waiting) < options.conversations:
                made[0] += 1
                number = f"{seed}-{made[0]}"
                waiting.append(Conversation(number, options, openings, random.Random(number)))
            if rng.random() < 0.5:
                waiting.rotate(rng.randrange(len(waiting)))
            return waiting.popleft()

    def client():
        while (one := next_one()) is not None:
            try:
                if one.turn():
                    with lock:
                        waiting.append(one)
            except (OSError, urllib.error.HTTPError) as error:
                failed.append(f"{one.name}: {error}")

    with concurrent.futures.ThreadPoolExecutor(options.clients) as pool:
        for done in [pool.submit(client) for _ in range(options.clients)]:
            done.result()
    for line in failed[:5]:
        print("failed:", line)
    return len(failed)


def records(directory):
    for path in sorted(glob.glob(os.path.join(directory, "**", "*.jsonl"), recursive=True)):
        with open(path, encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())


def report(options, since):
    served = [r for r in records(options.records) if r["outcome"] == "served" and r["time_ms"] >= since]
    told = [r for r in served if r["cached_tokens"] is not None]
    sure = [r for r in told if not (r["belief"] or {}).get("uncertain")]
    identities = collections.Counter(r["identity"] for r in served)
    leaving = sum(bool((r["belief"] or {}).get("leaving")) for r in served)
    print(
        f"served {len(served)} ({', '.join(f'{n} by {what}' for what, n in sorted(identities.items()))}), cached tokens told "
        f"{len(told)}, worker's events complete {len(sure)}, uncertain {len(told) - len(sure)}, with blocks about to go {leaving}"
    )
    if options.chat and options.tokens and identities["tokens"] < len(served):
        print(f"{len(served) - identities['tokens']} were not known by their tokens")
        return 0.0
    share = 100.0
    for name, some in [("all", told), ("sure", sure)] + [
        (f"source {s}", [r for r in told if r["belief"]["source"] == s]) for s in ("observed", "predicted", "none")
    ]:
        if not some:
            continue
        errors = sorted(r["predicted_cached_tokens"] - r["cached_tokens"] for r in some)
        within = 100 * sum(abs(e) <= options.block for e in errors) / len(errors)
        if name == "sure":
            share = within
        at = lambda q: errors[min(len(errors) - 1, int(q * len(errors)))]
        mean = sum(abs(e) for e in errors) / len(errors)
        tokens = sum(r["cached_tokens"] for r in some)
        print(
            f"  {name:16} n={len(errors):4} within one block {within:6.2f} %  mean |error| {mean:7.1f}  "
            f"p1 {at(0.01)} p50 {at(0.5)} p90 {at(0.9)} p99 {at(0.99)} min {errors[0]} max {errors[-1]}  cached tokens {tokens}"
        )
    if options.show:
        for r in [r for r in told if abs(r["predicted_cached_tokens"] - r["cached_tokens"]) > options.block][: options.show]:
            keys = ("time_ms", "worker", "model", "turn", "prompt_tokens", "predicted_cached_tokens", "belief", "cached_tokens")
            print("   ", {k: r[k] for k in keys}, r["session"])
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--records", required=True, help="the gateway's directory of records")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--adapter", action="append", default=[], help="an adapter's name; may be repeated")
    parser.add_argument("--chat", action="store_true", help="messages to /v1/chat/completions, not token ids")
    parser.add_argument("--tokens", action="store_true", help="with --chat: all must be known by their tokens")
    parser.add_argument("--salts", action="store_true", help="some conversations have a cache_salt")
    parser.add_argument("--answer-ids", action="store_true", help="go on with the answers' own token ids (vLLM)")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--conversations", type=int, default=14)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--longest", type=int, default=2500, help="tokens of a conversation")
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--block", type=int, default=32, help="tokens of an engine's block")
    parser.add_argument("--target", type=float, default=0.0, help="least percentage within one block")
    parser.add_argument("--restart", help="a shell command that restarts an engine, run in the middle")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds to wait after the restart, and for the records")
    parser.add_argument("--show", type=int, default=0, help="so many requests that were off")
    options = parser.parse_args()
    options.tag = f"b{os.getpid()}"
    since = int(time.time() * 1000)
    half = options.requests // 2
    if options.restart:
        failed = run(options, half, 1)
        # Traffic goes on while it restarts: what is in flight on it is tried again elsewhere.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            restarting = pool.submit(subprocess.run, options.restart, shell=True, check=True, stdout=subprocess.DEVNULL)
            failed += run(options, half // 3, 2)
            restarting.result()
        time.sleep(options.settle)
        failed += run(options, options.requests - half - half // 3, 3)
    else:
        failed = run(options, options.requests, 1)
    time.sleep(options.settle)
    share = report(options, since)
    print(f"failed {failed}; within one block where the worker's events are complete: {share:.2f} %")
    sys.exit(1 if failed or share < options.target else 0)


if __name__ == "__main__":
    main()
