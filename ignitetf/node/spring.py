"""Elements of Spring XML, and their text: what `config` and `guard` are written in.

Spring evaluates `${...}` and `#{...}` in every value, so none may contain them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Final

from ignitetf.errors import ConfigError

__all__ = ["Element", "bean", "document", "item", "literal", "masked", "prop", "text_of", "value"]

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
_TEXT: Final = "#"  # opening tag of an element that is text in <value>


def document(beans: Iterable[Element]) -> str:
    """A whole document of these beans."""
    lines = [line for each in beans for line in _indented(each, 1)]
    return _HEAD + "\n".join(lines) + "\n</beans>\n"


def text_of(element: Element) -> str:
    """One element, to be put into a document."""
    return "\n".join(_indented(element, 0))


def masked(xml: str) -> str:
    """A document with `***` in the place of every password."""
    return _PASSWORD.sub(r"\1***\2", xml)


def bean(name: str, *children: Element) -> Element:
    """A bean of the class `name` of Apache Ignite."""
    return (f'bean class="org.apache.ignite.{name}"', list(children))


def prop(name: str, child: Element) -> Element:
    """A property whose value is an element."""
    return (f'property name="{name}"', [child])


def value(name: str, value: str | int | bool) -> Element:
    """A property whose value is text, a number or a switch."""
    return (f'property name="{name}" value="{literal(value)}"', [])


def item(value: str) -> Element:
    """Text in a list."""
    return (_TEXT + literal(value), [])


def literal(value: str | int | bool) -> str:
    """A value as it stands between quotes; raises ConfigError where Spring would evaluate it."""
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
