"""An SVG file that matplotlib wrote as an element of a page among others, in a third of its length."""

import re
import string
from collections import Counter
from collections.abc import Iterator
from html import escape
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

LINK = "{http://www.w3.org/1999/xlink}href"
OF_THE_FILE = ("width", "height", "version")  # the page says how large it is
ROOT_STYLE = "stroke-linejoin:round;stroke-linecap:butt"  # what matplotlib asks of every element
DIGITS = string.digits + string.ascii_lowercase
_URL = re.compile(r"url\(#([^)]+)\)")
_LONG = re.compile(r"-?\d+\.\d{3,}")
_TRANSLATION = re.compile(r"translate\(([^)]*)\)")


def inline_svg(text: str, prefix: str) -> str:
    """The `svg` element of a file, with the same picture.

    Its ids and classes begin with the prefix, so that no two figures of a page share one. It hides its parts
    from a screen reader, which is read the words beside it. Shorter than the file: places to a hundredth of a
    point, a style that many parts have and a word that stands in many places only once, no id that nothing
    refers to, no group that says nothing, no comments and line breaks.
    """
    root = ElementTree.fromstring(text)
    _localise(root)
    for name in OF_THE_FILE:
        root.attrib.pop(name, None)
    definitions = _take_definitions(root)
    names = _Names(prefix)
    for element in (*root.iter(), *(part for own in definitions for part in own.iter())):
        _shorten(element)
    _unwrap(root)
    _say_words_once(root, names)
    _rename(root, definitions, names)
    rules = "".join(f".{name}{{{style}}}" for style, name in names.classes.items())
    head = "".join(f' {key}="{escape(value)}"' for key, value in root.attrib.items())
    inner = "".join(map(_written, [*_wrapped(definitions), *root]))
    return (
        f'<svg{head} style="{ROOT_STYLE}" aria-hidden="true" focusable="false">'
        f"{f'<style>{rules}</style>' if rules else ''}{inner}</svg>"
    )


class _Names:
    """Short names in the order in which they are first asked for."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.ids: dict[str, str] = {}
        self.classes: dict[str, str] = {}

    def id_of(self, name: str) -> str:
        return self.ids.setdefault(name, f"{self.prefix}-{_base36(len(self.ids))}")

    def class_of(self, style: str) -> str:
        return self.classes.setdefault(style, f"{self.prefix}_{_base36(len(self.classes))}")


def _base36(number: int) -> str:
    digits = DIGITS[number % 36]
    return digits if number < 36 else _base36(number // 36) + digits


def _localise(root: Element) -> None:
    """Names without their namespaces, as a page has them."""
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))


def _take_definitions(root: Element) -> list[Element]:
    """What stands in `defs` anywhere, taken out; nothing of what speaks of the file or of every element."""
    found: list[Element] = []
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == "defs":
                found += [each for each in child if each.tag != "style"]
            if child.tag in ("defs", "metadata"):
                parent.remove(child)
    return found


def _shorten(element: Element) -> None:
    for key in ("d", "x", "y"):
        if key in element.attrib:
            element.set(key, _LONG.sub(_rounded, element.attrib[key]))
    if "d" in element.attrib:
        element.set("d", re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(element.attrib["d"].split())))
    if "transform" not in element.attrib:
        return
    moved = _TRANSLATION.sub(
        lambda found: f"translate({_LONG.sub(_rounded, found[1])})", element.attrib["transform"]
    )
    only = _TRANSLATION.fullmatch(moved)
    if element.tag == "use" and only and not {"x", "y"} & set(element.attrib):  # the same, in fewer letters
        del element.attrib["transform"]
        for key, place in zip("xy", re.split(r"[\s,]+", only[1]), strict=False):
            if float(place):
                element.set(key, place)
    else:
        element.set("transform", moved)


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _unwrap(parent: Element) -> None:
    """The children of groups that have no attribute but an id, which nothing refers to, in their place."""
    kept: list[Element] = []
    for child in parent:
        _unwrap(child)
        plain = child.tag == "g" and not child.attrib.keys() - {"id"}
        kept += list(child) if plain else [child]
    parent[:] = kept


def _say_words_once(root: Element, names: _Names) -> None:
    """A word, which is a group of glyphs: from its second place on, a reference to the first one."""
    words = [each for each in root.iter("g") if len(each) > 1 and all(part.tag == "use" for part in each)]
    texts = ["".join(map(_written, each)) for each in words]
    often = Counter(texts)
    first: dict[str, str] = {}
    for word, text in zip(words, texts, strict=True):
        if often[text] == 1:
            continue
        if text in first:
            word[:] = [Element("use", {"href": f"#{first[text]}"})]
        else:
            first[text] = f"word {len(first)}"
            group = Element("g", {"id": first[text]})
            group[:] = list(word)
            word[:] = [group]


def _rename(root: Element, definitions: list[Element], names: _Names) -> None:
    """Ids that are referred to and styles by their short names; other ids go."""
    elements = [*(part for own in definitions for part in own.iter()), *root.iter()]
    used = {name for element in elements for name in _references(element)}
    for element in elements:
        for key, value in element.attrib.items():
            if key == "href" and value.startswith("#"):
                element.set(key, f"#{names.id_of(value[1:])}")
            else:
                element.set(key, _URL.sub(lambda found: f"url(#{names.id_of(found[1])})", value))
        if (own := element.attrib.pop("id", "")) and own in used:
            element.set("id", names.id_of(own))
        if style := element.attrib.pop("style", ""):
            element.set("class", names.class_of(style))


def _references(element: Element) -> Iterator[str]:
    for key, value in element.attrib.items():
        if key == "href" and value.startswith("#"):
            yield value[1:]
        yield from _URL.findall(value)


def _wrapped(definitions: list[Element]) -> list[Element]:
    if not definitions:
        return []
    whole = Element("defs")
    whole[:] = definitions
    return [whole]


def _written(element: Element) -> str:
    own = "".join(f' {key}="{escape(value)}"' for key, value in element.attrib.items())
    inner = escape((element.text or "").strip(), quote=False) + "".join(map(_written, element))
    return f"<{element.tag}{own}>{inner}</{element.tag}>" if inner else f"<{element.tag}{own}/>"
