"""Draw docs/pictures/*.svg, in English and Spanish; a test keeps files and script equal.

A picture follows the reader's light or dark setting, and inside the site the site's own switch: docs/site/conf.py
puts it into the page. Figures of curves are computed by the cost model.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from selfspec.control import ceiling, speedup

FOLDER = Path(__file__).with_name("pictures")
WIDTH = 480  # legible on a phone: letters are a thirtieth of it
LIGHT = "--ink:#1b1f24;--soft:#57606a;--line:#c9d1d9;--draft:#8f4a00;--drafted:#ffe3c2;--full:#0b4f97;--fully:#d3e6fb;--no:#a40e26"
DARK = "--ink:#e6edf3;--soft:#9aa5b1;--line:#3d444d;--draft:#ffb870;--drafted:#5a3000;--full:#84bdf7;--fully:#0f3a66;--no:#ff8f8f"
STYLE = f"""<style>
svg.fig{{{LIGHT}}}
@media(prefers-color-scheme:dark){{svg.fig{{{DARK}}}}}
[data-theme=light] svg.fig{{{LIGHT}}}
[data-theme=dark] svg.fig{{{DARK}}}
.fig text{{font:14px system-ui,sans-serif;fill:var(--ink)}}
.fig .mid{{text-anchor:middle}}
.fig .end{{text-anchor:end}}
.fig .soft{{fill:var(--soft)}}
.fig .d{{fill:var(--draft);font-weight:600}}
.fig .f{{fill:var(--full);font-weight:600}}
.fig .n{{fill:var(--no);font-weight:600}}
.fig rect,.fig path{{stroke:var(--line);fill:none}}
.fig .dr{{fill:var(--drafted);stroke:var(--draft)}}
.fig .fr{{fill:var(--fully);stroke:var(--full)}}
.fig .nr{{stroke:var(--no);stroke-dasharray:4 3}}
.fig .curve{{stroke:var(--full);stroke-width:2}}
.fig .top{{stroke:var(--soft);stroke-dasharray:2 4}}
.fig .one{{stroke:var(--no)}}
</style>"""
WORDS = {
    "en": {
        "round": "One round of early exit: three tokens are drafted through the lower layers one after the other; "
        "verification goes on above them for all rows at once, and runs no layer twice.",
        "pending": "pending",
        "drafted": "drafted, one by one",
        "verified": "verified, all in one pass",
        "lower": "layers 0 to k",
        "upper": "layers k to L",
        "verdict": "A draft of four tokens: the first two are what the full model says too and stay; the third is not, "
        "and the model's own token takes its place; what follows is thrown away.",
        "text": "text so far",
        "draft": "draft",
        "model": "full model",
        "result": "what stays",
        "gain": "Speedup against the acceptance rate for four draft tokens: the cheaper a draft step, the nearer to the "
        "ceiling; a step of half a pass gains only where three of four tokens hold.",
        "alpha": "α: share of draft tokens that hold",
        "speed": "speedup S",
        "ceiling": "ceiling 1/(1 − α)",
        "plain": "plain decoding: 1",
    },
    "es": {
        "round": "Una ronda con salida temprana: tres tokens se proponen uno tras otro por las capas inferiores; la "
        "verificación sigue por encima con todas las filas a la vez y no repite ninguna capa.",
        "pending": "pendiente",
        "drafted": "propuestos, uno a uno",
        "verified": "verificados, en una pasada",
        "lower": "capas 0 a k",
        "upper": "capas k a L",
        "verdict": "Un borrador de cuatro tokens: los dos primeros son también los del modelo completo y se quedan; el "
        "tercero no, y lo sustituye el token del modelo; lo que sigue se descarta.",
        "text": "texto",
        "draft": "borrador",
        "model": "modelo",
        "result": "se queda",
        "gain": "Aceleración según la tasa de aceptación con cuatro tokens de borrador: cuanto más barato es un paso del "
        "borrador, más cerca del techo; si cuesta media pasada, solo gana cuando se aceptan tres de cada cuatro.",
        "alpha": "α: parte de los tokens del borrador que se aceptan",
        "speed": "aceleración S",
        "ceiling": "techo 1/(1 − α)",
        "plain": "sin borrador: 1",
    },
}
SENTENCES = {
    "en": (["Lisbon", "lies", "on", "the"], ["Tagus", ",", "near", "Porto"], ["Tagus", ",", "in"]),
    "es": (["Lisboa", "está", "junto", "al"], ["Tajo", ",", "cerca", "de"], ["Tajo", ",", "en"]),
}


def pages() -> dict[Path, str]:
    """Every picture, by its file."""
    drawn = {"round": _round, "verdict": _verdict, "gain": _gain}
    return {
        FOLDER / f"{name}{'' if language == 'en' else f'.{language}'}.svg": draw(language)
        for name, draw in drawn.items()
        for language in WORDS
    }


def _picture(height: int, title: str, parts: list[str]) -> str:
    head = f'<svg class="fig" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


def _box(x: float, y: float, wide: float, high: float, kind: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="4" class="{kind}"/>'


def _round(language: str) -> str:
    """Rows to the right, layers upwards; k = 4 of 8."""
    words, parts = WORDS[language], []
    left, top, wide, high, layers, exit_layer, gamma = 112, 34, 62, 20, 8, 4, 3
    for row in range(gamma + 1):
        x = left + row * (wide + 8)
        for layer in range(layers):
            is_drafted = layer < exit_layer and row < gamma
            y = top + (layers - 1 - layer) * (high + 3)
            parts.append(_box(x, y, wide, high, "dr" if is_drafted else "fr"))
            if is_drafted and layer == 0:
                parts.append(_text(x + wide / 2, y + 15, str(row + 1), "d mid"))
        name = words["pending"] if row == 0 else f"d{'₁₂₃'[row - 1]}"
        parts.append(_text(x + wide / 2, top + layers * (high + 3) + 16, name, "mid soft"))
    parts += [
        _text(left - 8, top + 2 * (high + 3), words["upper"], "end f"),
        _text(left - 8, top + 6 * (high + 3), words["lower"], "end d"),
        _text(left, top - 12, words["verified"], "f"),
        _text(left, top + layers * (high + 3) + 42, f"1, 2, 3: {words['drafted']}", "d"),
    ]
    return _picture(270, words["round"], parts)


def _verdict(language: str) -> str:
    """Four lines of tokens."""
    words, (before, draft, result) = WORDS[language], SENTENCES[language]
    left, wide, step = 104, 68, 46
    lines = [
        (words["text"], before, ["" for _ in before]),
        (words["draft"], draft, ["dr", "dr", "nr", "nr"]),
        (words["model"], result, ["fr"] * 3),
        (words["result"], result, ["dr", "dr", "fr"]),
    ]
    parts = []
    for i, (name, tokens, kinds) in enumerate(lines):
        y = 14 + i * step
        parts.append(_text(left - 16, y + 20, name, "end soft"))
        for j, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
            x = left + j * (wide + 24)
            parts.append(_box(x - 8, y, wide + 16, 30, kind))
            parts.append(_text(x + wide / 2, y + 20, token, "mid" + (" n" if kind == "nr" else "")))
    return _picture(202, words["verdict"], parts)


def _gain(language: str) -> str:
    """S over α at γ = 4 and v = 1, for four costs of a draft step."""
    words = WORDS[language]
    left, top, wide, high, most = 52, 30, 330, 210, 5.0

    def at(alpha: float, value: float) -> tuple[float, float]:
        return left + alpha * wide, top + high - value / most * high

    def curve(points: list[tuple[float, float]], kind: str) -> str:
        return f'<path class="{kind}" d="M{" L".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'

    steps = [i / 50 for i in range(50)]
    parts = [_box(left, top, wide, high, ""), _text(left, top - 10, words["speed"])]
    for value in range(1, int(most) + 1):
        parts.append(_text(left - 8, at(0, value)[1] + 5, str(value), "end soft"))
    parts += [_text(at(a, 0)[0], top + high + 18, f"{a:g}", "mid soft") for a in (0, 0.5, 1)]
    parts.append(_text(left + wide / 2, top + high + 40, words["alpha"], "mid"))
    parts.append(curve([at(a, ceiling(a)) for a in steps if ceiling(a) <= most], "top"))
    parts.append(curve([at(0, 1), at(1, 1)], "one"))
    for cost in (0.0, 0.15, 0.5, 0.9):
        parts.append(curve([at(a, speedup(a, 4, cost)) for a in steps], "curve"))
        parts.append(_text(left + wide + 6, at(0, speedup(0.98, 4, cost))[1] + 5, f"c = {cost:g}", "f"))
    parts.append(_text(at(0.74, 0)[0], at(0, 4.55)[1], words["ceiling"], "end soft"))
    parts.append(_text(left + wide - 6, top + high - 8, words["plain"], "end n"))
    return _picture(284, words["gain"], parts)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
