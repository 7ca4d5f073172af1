"""An HTML page taken apart: elements with attributes and text, and what is wrong with its form."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "wbr", "br", "img", "hr", "input"}


class Element:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent, self.children, self.own = tag, attributes, parent, [], []

    def __getitem__(self, name):
        return self.attributes.get(name)

    @property
    def text(self):
        return "".join(part if isinstance(part, str) else part.text for part in self.own)

    def all(self, tag=None, **attributes):
        """All within it, in order, with these attributes (``role="img"``; ``kind`` stands for class)."""
        wanted = {"class" if name == "kind" else name: value for name, value in attributes.items()}
        for child in self.children:
            has = all(value in (child[name] or "").split() for name, value in wanted.items())
            if (tag is None or child.tag == tag) and has:
                yield child
            yield from child.all(tag, **attributes)


class Page(HTMLParser):
    """Raises AssertionError where elements do not nest."""

    def __init__(self, html):
        super().__init__()
        self.root = self._here = Element("", {}, None)
        self.feed(html)
        self.close()
        assert self._here is self.root, f"<{self._here.tag}> is not closed"

    def handle_starttag(self, tag, attrs):
        made = Element(tag, dict(attrs), self._here)
        self._here.children.append(made)
        self._here.own.append(made)
        if tag not in VOID:
            self._here = made

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._here.tag == tag, f"</{tag}> closes <{self._here.tag}>"
        self._here = self._here.parent

    def handle_data(self, data):
        self._here.own.append(data)

    def all(self, tag=None, **attributes):
        return self.root.all(tag, **attributes)
