"""Build elements of Spring XML and convert them to text, for `config` and `guard`.

Spring evaluates `${...}` and `#{...}` in every value, so values must not contain them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Final

from ignitetf.errors import ConfigError

__all__ = [
    "Element",
    "bean",
    "document",
    "entry",
    "item",
    "literal",
    "masked",
    "prop",
    "text_of",
    "value",
]

# (opening tag without brackets, children)
Element = tuple[str, list["Element"]]

_HEAD: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<beans xmlns="http://www.springframework.org/schema/beans"\n'
    '       xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"\n'
    '       xsi:schemaLocation="http://www.springframework.org/schema/beans\n'
    '                           http://www.springframework.org/schema/beans/spring-beans.xsd">\n'
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PASSWORD: Final = re.compile(r'(name="[A-Za-z]*[Pp]assword" value=")[^"]*(")')
_TEXT: Final = "#"  # marks an element that is text inside <value>


def document(beans: Iterable[Element]) -> str:
    """Return a complete document with these beans."""
    lines = [line for each in beans for line in _indented(each, 1)]
    return _HEAD + "\n".join(lines) + "\n</beans>\n"


def text_of(element: Element) -> str:
    """Return the text of one element, for insertion into a document."""
    return "\n".join(_indented(element, 0))


def masked(xml: str) -> str:
    """Return a document with every password replaced by `***`."""
    return _PASSWORD.sub(r"\1***\2", xml)


def bean(name: str, *children: Element) -> Element:
    """Return a bean of Apache Ignite's class `name`."""
    return (f'bean class="org.apache.ignite.{name}"', list(children))


def prop(name: str, child: Element) -> Element:
    """Return a property whose value is an element."""
    return (f'property name="{name}"', [child])


def value(name: str, value: str | int | bool) -> Element:
    """Return a property whose value is text, a number or a boolean."""
    return (f'property name="{name}" value="{literal(value)}"', [])


def item(value: str) -> Element:
    """Return a text item of a list."""
    return (_TEXT + literal(value), [])


def entry(key: str, value: str) -> Element:
    """Return an entry of a map."""
    return (f'entry key="{literal(key)}" value="{literal(value)}"', [])


def literal(value: str | int | bool) -> str:
    """Return a value escaped for quotes; raises ConfigError if Spring would evaluate it."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if "${" in text or "#{" in text or _CONTROL.search(text):
        raise ConfigError(
            f"a name or path of a node may not contain '${{', '#{{' or control characters: {text!r}",
            hint="choose another name, or another folder with IGNITETF_HOME",
        )
    return html.escape(text, quote=True)


def _indented(element: Element, depth: int) -> Iterator[str]:
    tag, children = element
    space = "  " * depth
    if tag.startswith(_TEXT):
        yield f"{space}<value>{tag[1:]}</value>"
    elif not children:
        yield f"{space}<{tag}/>"
    else:
        yield f"{space}<{tag}>"
        for child in children:
            yield from _indented(child, depth + 1)
        yield f"{space}</{tag.split(' ', 1)[0]}>"
