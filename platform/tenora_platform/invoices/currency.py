"""How many decimals a currency has, and rounding to them. It knows no invoice."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal

from tenora_platform.billing.rating import exact_sum

_DECIMALS = {  # ISO 4217, where there are not two
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG"), 0),
    **dict.fromkeys(("RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
    **dict.fromkeys(("CLF", "UYW"), 4),
}
_CONTEXT = Context(prec=80, rounding=ROUND_HALF_EVEN)


def minor_unit(currency: str) -> Decimal:
    """The smallest amount there is: 1 yen, 0.01 dollars, 0.001 dinars of Kuwait."""
    return Decimal(1).scaleb(-_DECIMALS.get(currency, 2))


def rounded(amount: Decimal, currency: str) -> Decimal:
    """To the minor unit, half to even. Never "-0"."""
    found = amount.quantize(minor_unit(currency), context=_CONTEXT)
    return found if found else found.copy_abs()


def negated(amount: Decimal) -> Decimal:
    """-amount, as exact as it is: Python's own minus rounds at 28 digits. Never "-0"."""
    return amount.copy_negate() if amount else amount


def percent(amount: Decimal, rate: Decimal) -> Decimal:
    """`rate` percent of it, unrounded."""
    return _CONTEXT.multiply(amount, rate).scaleb(-2, context=_CONTEXT)


def shown(amount: Decimal, currency: str) -> str:
    """With all decimals of the currency: "12.50", "1250" of yen."""
    return format(rounded(amount, currency), "f")


def plain(amount: Decimal) -> str:
    """An exact amount as a decimal string, without an exponent and without zeros at its end."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


__all__ = ["exact_sum", "minor_unit", "negated", "percent", "plain", "rounded", "shown"]
