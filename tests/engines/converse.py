#!/usr/bin/env python3
"""Play real conversations through a maitred gateway with the OpenAI client, under several policies.

  converse.py --gateway URL --admin URL --model NAME --policies round_robin,session [--data DIR] ...

For each policy the same sessions are played, in the same shuffled order, by the same number of clients; every other
request streams. Each pass opens every system text with a word of its own, so that nothing an earlier pass left in
the engines' caches can match. What counts is what the engines report: `cached_tokens` of `prompt_tokens`.
Exit status 1 if any request failed, or if an answer had no usage. Needs: openai.
"""
import argparse
import collections
import concurrent.futures
import io
import json
import pathlib
import random
import statistics
import sys
import time
import urllib.request

import openai

WORDS = ("ledger harbour winter copper signal garden engine letter market river window ticket planet silver "
         "anchor basket candle desert falcon guitar hammer island jacket kettle").split()


def text_of(message):
    """A message as plain text: parts joined, tool calls as JSON, so that any chat template renders it."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
    pieces = [content] if content else []
    if message.get("tool_calls"):
        pieces.append(json.dumps(message["tool_calls"]))
    return "\n".join(pieces)


def plain(message):
    role = message["role"] if message["role"] in ("system", "user", "assistant") else "user"
    return {"role": role, "content": text_of(message) or "."}


def scaled(requests, budget, turns):
    """The first `turns` requests, each message cut in proportion so that the longest request fits in `budget` bytes."""
    requests = [[plain(m) for m in messages] for messages in requests[:turns]]
    total = max(sum(len(m["content"]) for m in messages) for messages in requests)
    share = min(1.0, budget / total)
    return [[{**m, "content": m["content"][: max(24, int(len(m["content"]) * share))]} for m in messages]
            for messages in requests]


def read_jsonl(path):
    import zstandard

    with open(path, "rb") as file:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8"):
            yield json.loads(line)


def recorded_sessions(data, tau_sessions):
    """agentperf (requests as sent) and tau-bench (dialogues: each assistant message answers all before it)."""
    agents = collections.OrderedDict()
    for row in read_jsonl(data / "agentperf-requests.jsonl.zst"):
        agents.setdefault(row["conversation_id"], []).append((row["conversation_idx"], row["messages"]))
    for name, rows in agents.items():
        yield f"agentperf/{name}", [messages for _, messages in sorted(rows, key=lambda row: row[0])]
    rows = list(read_jsonl(data / "taubench-airline-gpt4o-sessions.jsonl.zst"))
    for row in rows[:: max(1, len(rows) // tau_sessions)][:tau_sessions]:
        messages = row["messages"]
        cuts = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0]
        yield f"taubench/{row['task_id']}-{row['trial']}", [messages[:i] for i in cuts]


def made_sessions(count, turns, seed):
    """Conversations of our own making, for a clone without recorded ones."""
    rng = random.Random(seed)
    shared = "You answer briefly. " + " ".join(rng.choices(WORDS, k=120))
    for n in range(count):
        messages = [{"role": "system", "content": shared}]
        requests = []
        for _ in range(turns):
            messages.append({"role": "user", "content": f"Case {n}: " + " ".join(rng.choices(WORDS, k=40))})
            requests.append(list(messages))
            messages.append({"role": "assistant", "content": " ".join(rng.choices(WORDS, k=25))})
        yield f"made/{n}", requests


def call(client, model, messages, stream, max_tokens):
    """One request; returns (usage, worker name, seconds to the first content or the whole answer)."""
    begun = time.monotonic()
    create = client.chat.completions.with_raw_response.create
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    raw = create(model=model, messages=messages, max_tokens=max_tokens, temperature=0, **options)
    worker = raw.headers.get("x-maitred-worker", "?")
    answer = raw.parse()
    if not stream:
        if not answer.choices:
            raise RuntimeError("answer without choices")
        return answer.usage, worker, time.monotonic() - begun
    usage, first, finished = None, None, False
    for chunk in answer:
        if chunk.usage is not None:
            usage = chunk.usage
        for choice in chunk.choices:
            if choice.delta.content and first is None:
                first = time.monotonic() - begun
            finished = finished or choice.finish_reason in ("stop", "length")
    if not finished:
        raise RuntimeError("stream without a finish reason")
    return usage, worker, first if first is not None else time.monotonic() - begun


def play(args, sessions, marker, seed):
    client = openai.OpenAI(base_url=args.gateway.rstrip("/") + "/v1", api_key="test-client", max_retries=0, timeout=120)
    order = list(sessions)
    random.Random(seed).shuffle(order)
    rows, errors = [], []

    def one(session):
        name, requests = session
        for number, messages in enumerate(requests):
            head = messages[0]
            messages = [{**head, "content": f"{marker}. {head['content']}"}] + messages[1:]
            try:
                usage, worker, ttft = call(client, args.model, messages, number % 2 == 0, args.max_tokens)
                details = usage.prompt_tokens_details
                if details is None or details.cached_tokens is None:
                    raise RuntimeError("usage without cached_tokens")
                rows.append((number, usage.prompt_tokens, details.cached_tokens, worker, ttft))
            except Exception as error:  # every failure is a result of this test
                errors.append(f"{name} request {number}: {type(error).__name__}: {str(error)[:200]}")
                return

    with concurrent.futures.ThreadPoolExecutor(args.clients) as pool:
        list(pool.map(one, order))
    return rows, errors


def set_policy(admin, pool, policy):
    request = urllib.request.Request(
        f"{admin.rstrip('/')}/pools/{pool}/policy", method="PUT", data=json.dumps({"name": policy}).encode(),
        headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status < 300, answer.status


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--admin", required=True)
    parser.add_argument("--pool", default="default")
    parser.add_argument("--model", required=True)
    parser.add_argument("--policies", default="round_robin,session,soft_affinity,cache_aware")
    parser.add_argument("--data", type=pathlib.Path, help="directory with recorded conversations; else made ones")
    parser.add_argument("--tau-sessions", type=int, default=24)
    parser.add_argument("--sessions", type=int, default=10, help="made sessions")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--budget", type=int, default=4300, help="bytes of the longest request")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()

    source = recorded_sessions(args.data, args.tau_sessions) if args.data else made_sessions(
        args.sessions, args.turns, args.seed)
    sessions = [(name, scaled(requests, args.budget, args.turns)) for name, requests in source]
    total = sum(len(requests) for _, requests in sessions)
    print(f"{len(sessions)} sessions, {total} requests a policy, {args.clients} clients", flush=True)
    print("| policy | requests | errors | prompt tokens | cached tokens | cached share | busiest/mean | TTFT p50 ms |")
    print("|---|---|---|---|---|---|---|---|")
    failed, results = False, {}
    for number, policy in enumerate(args.policies.split(",")):
        set_policy(args.admin, args.pool, policy)
        marker = "-".join(random.Random(f"{args.seed}-{policy}-{time.time_ns()}").choices(WORDS, k=4))
        rows, errors = play(args, sessions, marker, args.seed)
        prompt, cached = sum(row[1] for row in rows), sum(row[2] for row in rows)
        load = collections.Counter()
        for row in rows:
            load[row[3]] += row[1]
        spread = max(load.values()) / (sum(load.values()) / len(load)) if load else 0
        ttft = statistics.median(row[4] for row in rows) * 1000 if rows else float("nan")
        print(f"| {policy} | {len(rows)} | {len(errors)} | {prompt} | {cached} | {cached / max(1, prompt):.3f} "
              f"| {spread:.2f} over {len(load)} | {ttft:.0f} |", flush=True)
        for error in errors[:5]:
            print(f"  error: {error}", file=sys.stderr)
        failed = failed or bool(errors) or len(rows) != total
        results[policy] = {"requests": len(rows), "errors": len(errors), "prompt_tokens": prompt,
                           "cached_tokens": cached, "busiest_over_mean": spread, "number": number}
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    baseline = results.get("round_robin")
    for policy, row in results.items():
        # Sessions that stay on their worker must find more than sessions dealt round; equal would mean no affinity.
        if baseline and policy != "round_robin" and row["cached_tokens"] <= baseline["cached_tokens"]:
            print(f"error: {policy} found no more cached tokens than round_robin", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
