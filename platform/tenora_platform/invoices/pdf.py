"""An invoice as a PDF, by fpdf2. Texts that Helvetica cannot write are shaped by HarfBuzz in the
Noto Sans font of each script, of which only the letters used are embedded, then in the operator's
own font. A letter that none has is a question mark; JSON and CSV have every text as it is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fontTools.ttLib import TTFont
from fpdf import FPDF
from fpdf.enums import XPos, YPos

from tenora_platform.invoices.schemas import Invoice, InvoiceLine, Party

_MARGIN_MM = 18.0
_TEXT_PT, _SMALL_PT, _TITLE_PT = 9.0, 7.5, 18.0
_ROW_MM = 6.0
_WIDTHS_MM = (8.0, 88.0, 34.0, 44.0)  # no, what, quantity, amount
_GREY = (110, 110, 110)
_CORE, _WIDE, _OWN = "Helvetica", "NotoSans", "OwnFont"
# By family: the package, and the file in it. All are under the SIL Open Font License.
_NOTO = {
    # Latin, Greek, Cyrillic, Devanagari
    _WIDE: ("fontpkg_noto_sans", "files/NotoSans[wdth,wght].ttf"),
    "NotoSansCJK": ("noto_cjk_sans_jp_regular", "NotoSansCJKjp-Regular.otf"),
    "NotoSansArabic": ("fontpkg_noto_sans_arabic", "files/NotoSansArabic[wdth,wght].ttf"),
    "NotoSansThai": ("fontpkg_noto_sans_thai", "files/NotoSansThai[wdth,wght].ttf"),
}
_TITLES = {"invoice": "Invoice", "credit_note": "Credit note"}


def pdf_of(invoice: Invoice, font: Path | None = None) -> bytes:
    """Return the document. `font`: a TrueType or OpenType file for letters that are in none of
    `_NOTO`'s fonts."""
    paper = _Paper(invoice, font)
    paper.add_page()
    paper.head()
    paper.parties()
    paper.lines()
    paper.totals()
    paper.foot_notes()
    return bytes(paper.output())


class _Paper(FPDF):
    """A4; each method is one part of the page, from the top."""

    def __init__(self, invoice: Invoice, font: Path | None) -> None:
        super().__init__(format="A4")
        self._invoice = invoice
        self._fonts = {family: _file_of(family) for family in _NOTO}
        if font is not None:
            self._fonts[_OWN] = font
        self._known_fonts = {_CORE}
        self.set_margin(_MARGIN_MM)
        self.set_auto_page_break(True, margin=_MARGIN_MM + 6)
        self.set_title(f"{_TITLES[invoice.kind]} {invoice.number or 'draft'}")
        if invoice.finalised_at is not None:
            self.set_creation_date(invoice.finalised_at)  # the same bytes each time

    def footer(self) -> None:
        self.set_y(-_MARGIN_MM)
        self.set_text_color(*_GREY)
        named = self._invoice.number or "draft"
        self._write(f"{named}, page {self.page_no()} of {{nb}}", size=_SMALL_PT, align="R")
        self.set_text_color(0)

    def head(self) -> None:
        invoice = self._invoice
        title = _TITLES[invoice.kind]
        if invoice.status != "final":
            title = f"{title} ({invoice.status})"
        self._write(title, size=_TITLE_PT, style="B", height=10)
        facts = [
            ("Number", invoice.number or "none: a draft"),
            ("Date", f"{invoice.finalised_at or invoice.created_at:%Y-%m-%d}"),
            ("Period", f"{invoice.start} to {invoice.end} (exclusive), UTC"),
        ]
        if invoice.due_at is not None:
            facts.append(("Due", f"{invoice.due_at:%Y-%m-%d}"))
        if invoice.reason is not None:
            facts.append(("Reason", invoice.reason))
        for name, value in facts:
            self._write(f"{name}: {value}")
        self.ln(4)

    def parties(self) -> None:
        """From and to, beside each other."""
        top, half = self.get_y(), self.epw / 2
        lowest = top
        for at, (label, side) in enumerate(
            (("From", self._invoice.seller), ("To", self._invoice.buyer))
        ):
            self.set_y(top)
            for number, text in enumerate([label, *_party_lines(side)]):
                self.set_x(self.l_margin + at * half)
                self._write(text, width=half - 4, style="B" if number == 0 else "")
            lowest = max(lowest, self.get_y())
        self.set_y(lowest + 6)

    def lines(self) -> None:
        amount = f"Amount, {self._invoice.currency}"
        self._row(("", "Description", "Quantity", amount), bold=True)
        self.line(self.l_margin, self.get_y(), self.l_margin + sum(_WIDTHS_MM), self.get_y())
        for line in self._invoice.lines:
            quantity = "" if line.quantity is None else f"{line.quantity:,} {line.unit or ''}"
            self._row((str(line.no), line.description, quantity, line.amount))
            if detail := _price_words(line):
                self.set_x(self.l_margin + _WIDTHS_MM[0])
                self.set_text_color(*_GREY)
                self._write(detail, size=_SMALL_PT, height=4)
                self.set_text_color(0)

    def totals(self) -> None:
        invoice = self._invoice
        self.line(self.l_margin, self.get_y(), self.l_margin + sum(_WIDTHS_MM), self.get_y())
        sums = [("Subtotal", invoice.subtotal), ("Tax", invoice.tax), ("Total", invoice.total)]
        if invoice.kind == "invoice" and invoice.status == "final":
            sums.append(("Due", invoice.amount_due))
        for name, value in sums:
            self._row(("", name, "", f"{value} {invoice.currency}"), bold=name in ("Total", "Due"))

    def foot_notes(self) -> None:
        self.ln(4)
        self.set_text_color(*_GREY)
        self._write(
            "Each line is rounded once (half to even). Exact amounts, and the requests behind "
            f"each line, are at /v1/invoices/{self._invoice.id}.",
            size=_SMALL_PT,
            height=4,
        )
        self.set_text_color(0)

    def _row(self, cells: Sequence[str], *, bold: bool = False) -> None:
        """One line of the table; a description too long for its column is folded."""
        style = "B" if bold else ""
        self._use(cells[1], style, _TEXT_PT)
        folded: Any = self.multi_cell(
            _WIDTHS_MM[1], _ROW_MM, self._printable(cells[1]), dry_run=True, output="LINES"
        )
        if self.will_page_break(_ROW_MM * len(folded)):
            self.add_page()
        top, left = self.get_y(), self.l_margin
        for width, text, align in zip(_WIDTHS_MM, cells, ("R", "L", "R", "R"), strict=True):
            self.set_xy(left, top)
            self._write(text, width=width, style=style, align=align, height=_ROW_MM)
            left += width
        self.set_y(top + _ROW_MM * len(folded))

    def _write(
        self,
        text: str,
        *,
        width: float = 0,
        size: float = _TEXT_PT,
        style: str = "",
        align: str = "L",
        height: float = 5,
    ) -> None:
        self._use(text, style, size)
        self.multi_cell(
            width,
            height,
            self._printable(text),
            align=align,
            new_x=XPos.LMARGIN,
            new_y=YPos.NEXT,
        )

    def _use(self, text: str, style: str, size: float) -> None:
        """Choose Helvetica, or the fonts that have the text's letters."""
        if _is_core(text):
            self.set_text_shaping(False)
            self.set_font(_CORE, style, size)
            return
        lacking = set(text)
        for family, path in self._fonts.items():
            still = _missing(lacking, path)
            if (still != lacking or family == _WIDE) and family not in self._known_fonts:
                self.add_font(family, "", path)
                self._known_fonts.add(family)
            lacking = still
        self.set_fallback_fonts(
            [family for family in self._fonts if family in self._known_fonts], exact_match=False
        )
        self.set_text_shaping(True)
        self.set_font(_WIDE, "", size)

    def _printable(self, text: str) -> str:
        if _is_core(text):
            return text
        lacking = functools.reduce(_missing, self._fonts.values(), set(text))
        return "".join("?" if letter in lacking else letter for letter in text)


def _is_core(text: str) -> bool:
    """What the PDF's own fonts can say; no page number counts as text of its own."""
    return all(letter < "\x7f" or "\xa0" <= letter <= "\xff" for letter in text)


def _file_of(family: str) -> Path:
    package, name = _NOTO[family]
    return Path(str(files(package) / name))


@functools.lru_cache(maxsize=8)
def _letters(path: Path) -> frozenset[str]:
    with TTFont(path, lazy=True, fontNumber=0) as font:
        return frozenset(map(chr, font.getBestCmap()))


def _missing(letters: set[str], path: Path) -> set[str]:
    """Return those that a font lacks; the end of a line needs none."""
    return letters - _letters(path) - {"\n"}


def _party_lines(side: Party) -> list[str]:
    named = side.name or side.tenant or ""
    tax = [f"Tax id: {side.tax_id}"] if side.tax_id else []
    return [line for line in [named, *side.address.splitlines(), *tax, side.email] if line]


def _price_words(line: InvoiceLine) -> str:
    if not line.prices:
        return ""
    if len(line.prices) == 1:
        return f"{line.prices[0].per_million} per million {line.unit}"
    tiers = ", ".join(f"{each.per_million} from {each.from_:,}" for each in line.prices)
    return f"price per million {line.unit}, by the month's quantity: {tiers}"
