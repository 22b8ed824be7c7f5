"""Renders cases.json with Python's Jinja2, set up as Transformers sets it up.

Usage: python3 render.py TEMPLATES_DIRECTORY > renderings.txt
       python3 render.py TEMPLATES_DIRECTORY TEMPLATE CASE   (prints one rendering)

One line for each template and case: path, case, and the FNV-1a 64 hash and length in bytes of
what was rendered, or `error` where Jinja2 refuses.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """The `generation` tag: prints what it holds."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_support")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment(now):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = now.strftime
    return env


def render(env, source, request, special):
    names = {**special, **request.get("chat_template_kwargs", {})}
    return env.from_string(source).render(
        messages=request["messages"],
        tools=request.get("tools"),
        documents=request.get("documents"),
        add_generation_prompt=request.get("add_generation_prompt", True),
        **names,
    )


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    root = Path(sys.argv[1])
    given = json.loads((Path(__file__).parent / "cases.json").read_text())
    env = environment(datetime(*given["now"]))
    only = sys.argv[2:]
    for path in sorted(root.rglob("*.jinja")):
        name = path.relative_to(root).as_posix()
        source = path.read_text(encoding="utf-8")
        for case, request in given["cases"].items():
            if only and only != [name, case]:
                continue
            try:
                text = render(env, source, request, given["special"])
                if only:
                    sys.stdout.write(text)
                    return
                data = text.encode()
                print(name, case, f"{fnv(data):016x}", len(data))
            except Exception as error:
                if only:
                    raise
                print(name, case, "error")


if __name__ == "__main__":
    main()
