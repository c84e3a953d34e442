"""What a person at Chromium sees of the portal: when a page can be used, and whether it stays
smooth while it is scrolled. Everything is measured in the page itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenora_bench.client import BenchError
from tenora_bench.metrics import percentile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_VIEWPORT = {"width": 1440, "height": 900}
_GIVE_UP_MS = 30_000
_SCROLL_GIVE_UP_MS = 120_000
STEP_PX = 800
"""Scrolled from frame to frame: twenty rows, 48,000 pixels a second: faster than one can read
anything."""

WHEEL_PX, WHEEL_S = 100, 15.0
"""A notch of a mouse's wheel in every frame, 6,000 pixels a second, as a person scrolls fast."""


@dataclass(frozen=True)
class PageOf:
    """A page of the portal, and what is there once its first data are."""

    path: str
    shown: str = "main tbody tr td"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Raises BenchError where there is none, or nothing to drive it."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise BenchError("the browser is driven by playwright: pip install playwright") from error
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise BenchError("no Chromium on this machine; install Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def sign_in(browser: Browser, url: str, key: str) -> Mapping[str, Any]:
    """What another context needs to be signed in."""
    with _context(browser, url) as context:
        page = context.new_page()
        page.goto("/")
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("navigation").first.wait_for()
        return dict(context.storage_state())


@contextmanager
def _context(
    browser: Browser, url: str, state: Mapping[str, Any] | None = None
) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=url, viewport=_VIEWPORT, storage_state=state)  # type: ignore[arg-type]
    context.set_default_timeout(_GIVE_UP_MS)
    try:
        yield context
    finally:
        context.close()


def interactive(
    browser: Browser, url: str, state: Mapping[str, Any], wanted: PageOf, times: int
) -> dict[str, float]:
    """Medians of `times` navigations with nothing in the cache, and of as many again with all of
    it: ms until heading and first data are painted and a key has been handled behind them."""
    cold, warm, kilobytes = [], [], []
    for _ in range(times):
        with _context(browser, url, state) as context:
            page = context.new_page()
            cold.append(_navigate(page, wanted))
            kilobytes.append(page.evaluate(_TRANSFERRED) / 1000)
            warm.append(_navigate(page, wanted))
    return {
        "cold_ms": _median(cold),
        "warm_ms": _median(warm),
        "cold_kb": _median(kilobytes),
    }


def _navigate(page: Page, wanted: PageOf) -> float:
    """Raises BenchError where the page never comes."""
    from playwright.sync_api import TimeoutError

    page.goto(wanted.path, wait_until="commit")
    try:
        page.wait_for_function(_READY, arg=wanted.shown, polling="raf")
    except TimeoutError as error:
        seconds = _GIVE_UP_MS // 1000
        reason = f"{wanted.path} did not show {wanted.shown!r} within {seconds} s"
        raise BenchError(reason) from error
    page.evaluate(_NEXT_KEY)
    page.keyboard.press("Tab")
    return float(page.evaluate("window.benchHandled"))


def scrolled(
    browser: Browser,
    url: str,
    state: Mapping[str, Any],
    wanted: PageOf,
    label: str,
    step_px: int = STEP_PX,
    most_s: float = _SCROLL_GIVE_UP_MS / 1000,
) -> dict[str, Any]:
    """Frames of a list that is scrolled to its end, page after page, or for so long."""
    asked: list[str] = []
    with _context(browser, url, state) as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        _navigate(page, wanted)
        asked.clear()
        found = page.evaluate(_SCROLL, {"label": label, "step": step_px, "most": most_s * 1000})
    paged = [each for each in asked if "after=" in each]
    return {
        "rows": found["seen"],
        "came_to_its_end": found["rows"] >= 0,
        "took_s": round(found["took_ms"] / 1000, 1),
        "pages_asked": len(paged),
        **_frames(found),
        "rows_drawn_max": found["drawn"],
        "nodes_max": found["nodes"],
        "heap_mb": round(found["heap"] / 1e6, 1),
    }


def watched(
    browser: Browser, url: str, state: Mapping[str, Any], wanted: PageOf, seconds: float
) -> dict[str, Any]:
    """Frames of a page that is looked at while it moves by itself, and how long it takes from an
    arrow key at the map to the frame that shows it."""
    with _context(browser, url, state) as context:
        page = context.new_page()
        _navigate(page, wanted)
        found = page.evaluate(_WATCH, seconds * 1000)
        page.get_by_role("application").focus()
        drawn = []
        for _ in range(30):
            page.evaluate(_NEXT_KEY)
            page.keyboard.press("ArrowRight")
            handled, pressed = page.evaluate(_HANDLED)
            drawn.append(handled - pressed)
    return {**_frames(found), "key_to_frame_ms": _median(drawn), "seconds": seconds}


def _frames(found: Mapping[str, Any]) -> dict[str, Any]:
    frames = found["frames"]
    return {
        "frames": len(frames),
        "frame_p50_ms": round(percentile(frames, 0.5) or 0, 1),
        "frame_p99_ms": round(percentile(frames, 0.99) or 0, 1),
        "frame_max_ms": round(max(frames), 1),
        "frames_over_50_ms": sum(each > 50 for each in frames),
        "longest_task_ms": round(max(found["tasks"], default=0), 1),
    }


def _median(values: list[float]) -> float:
    return round(percentile(values, 0.5) or 0, 1)


_READY = """(shown) => document.querySelector('main h1') && document.querySelector(shown)
  && !document.querySelector('main [aria-busy=true], main [class*=Skeleton-root]')"""
_NEXT_KEY = """() => {
  window.benchHandled = new Promise((done) =>
    addEventListener('keydown', (event) => {
      window.benchPressed = event.timeStamp;
      requestAnimationFrame(() => setTimeout(() => done(performance.now())));
    }, { once: true, capture: true }));
}"""
_HANDLED = "async () => [await window.benchHandled, window.benchPressed]"
_TRANSFERRED = """() => [...performance.getEntriesByType('navigation'),
  ...performance.getEntriesByType('resource')].reduce((sum, each) => sum + each.transferSize, 0)"""
_RECORD = """
  const frames = [], tasks = [];
  const observer = new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) tasks.push(duration);
  });
  observer.observe({ entryTypes: ['longtask'] });
  const began = performance.now();
  const frame = () => new Promise(requestAnimationFrame);
  let last = await frame();
  const step = async () => {
    const now = await frame();
    frames.push(now - last);
    last = now;
  };
"""
_SCROLL = f"""async ({{ label, step: pixels, most }}) => {{
  {_RECORD}
  const table = document.querySelector(`table[aria-label="${{label}}"]`);
  const scroller = table.closest('section');
  let drawn = 0, nodes = 0, seen = 0, rows = -1, at = 0;
  while (performance.now() - began < most) {{
    const lines = table.tBodies[0].querySelectorAll('tr[aria-rowindex]');
    drawn = Math.max(drawn, lines.length);
    if (at++ % 20 === 0) nodes = Math.max(nodes, document.getElementsByTagName('*').length);
    seen = Number(lines[lines.length - 1]?.getAttribute('aria-rowindex')) - 1;
    const total = Number(table.getAttribute('aria-rowcount')) - 1;
    if (total >= 0 && seen === total) {{ rows = total; break; }}
    scroller.scrollTop += pixels;
    await step();
  }}
  observer.disconnect();
  return {{ frames, tasks, drawn, nodes, rows, seen, took_ms: performance.now() - began,
           heap: performance.memory?.usedJSHeapSize ?? 0 }};
}}"""
_WATCH = f"""async (length) => {{
  {_RECORD}
  while (performance.now() - began < length) await step();
  observer.disconnect();
  return {{ frames, tasks }};
}}"""
