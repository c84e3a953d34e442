"""Drafts: tokens that a sequence will perhaps generate, looked up in text that it resembles, which
a step verifies all at once. A row of a draft computes what a decode step would, to the bit, and its
sample is drawn by the same number, so answers are the same with and without drafts; the step keeps
what comes up to the first sample that differs from its draft (speculative decoding: Leviathan et
al., 2023; prompt lookup: Saxena, 2023). What is drafted is a matter of time only, and so is decided
by time: how much a row adds to a step against how much a token that comes sooner saves."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from tenora_engine.config import ResolvedConfig
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import AdapterRef
from tenora_engine.scheduling.draft_texts import (
    MATCHES,
    NOTHING,
    SEARCHED_TOKENS,
    Answers,
    Found,
    Text,
)
from tenora_engine.scheduling.own_layers import OwnLayers
from tenora_engine.scheduling.plan import ScheduledSequence, ScheduledStep
from tenora_engine.sequence import Sequence
from tenora_engine.step import Proposals, StepResult
from tenora_engine.token_ids import known_tokens

FIRST_RATE, FIRST_DRAWN_RATE = 0.7, 0.3
"""Of what the layer proposes to a sequence, until it has had any: the part that is taken to be
right, greedy and where tokens are drawn at DRAWN_TEMPERATURE or above."""

FIRST_RATES = {16: 0.97, 8: 0.85, 4: 0.7, 3: 0.65, 2: 0.35}
"""The same of what is found behind a run of so many tokens, as chats, summaries and answers with
their sources have it (Spec-Bench)."""

FIRST_DRAWN_RATES = {16: 0.95, 8: 0.8, 4: 0.3, 3: 0.2, 2: 0.05}
"""The same where tokens are drawn at DRAWN_TEMPERATURE or above: a draft is right with its token's
own chance, however well it is foretold, and a short run says little."""

DRAWN_TEMPERATURE = 0.7

BEST_RATE = 0.98
"""No drafts are believed to be right more often."""

PROPOSED_MAX = 4
"""Tokens that the trained layer proposes at once; it is seldom sure enough of as many."""

_MEMORY = 0.8  # weight of the past in a sequence's rate, a draft at a time
_RECOVERY = 0.02  # of the way back to the first rate, a step without such drafts
_LAYER_RECOVERY = 0.005  # of the layer's, which is asked to know: that takes time
_FORGETTING = 0.002  # of what a row was seen to add, where it is not seen any more, a step
_SLOW = 0.98  # weight of the past in what steps were seen to take


Source = Literal["text", "prediction", "answers", "grammar", "layer"]
"""The request's own text, what it predicted, the tenant's earlier answers, what alone its grammar
allows, what the trained layer proposes."""


@dataclass(eq=False, slots=True)
class Drafting:
    """Of one sequence that decodes."""

    text: Text  # its prompt and output
    known: int  # tokens of it that are in `text`
    prediction: Text | None
    source: Source = "text"  # of its last drafts
    length: int = 0  # of the run behind which they were found
    first_rates: dict[int, float] = field(default_factory=FIRST_RATES.copy)  # by that
    rates: dict[int, float] = field(default_factory=FIRST_RATES.copy)  # as they were seen to be
    first_layer_rate: float = FIRST_RATE
    layer_rate: float = FIRST_RATE  # of the times that the layer was asked, those it was right
    proposed: list[int] = field(default_factory=list)  # by the layer
    proposed_at: int = 0  # tokens of the sequence that they come after
    accepted: int = 0
    rejected: int = 0

    def observe(self, num_accepted: int, num_rejected: int) -> None:
        """Of its last drafts."""
        self.accepted += num_accepted
        self.rejected += num_rejected
        if self.source == "layer":
            self.observe_layer(num_accepted > 0)
        elif self.source != "grammar":
            for is_right in (*[1.0] * num_accepted, *[0.0] * (num_rejected > 0)):
                past = self.rates[self.length]
                self.rates[self.length] = _MEMORY * past + (1 - _MEMORY) * is_right

    def observe_layer(self, is_right: bool) -> None:
        self.layer_rate = _MEMORY * self.layer_rate + (1 - _MEMORY) * is_right


class StepTimes:
    """What decode steps of about as many sequences take by their rows: a line through those that
    were seen, old ones fading. A row adds at most its part of a step, and some: what else the step
    does is read for it. What it adds is remembered as a part of a step, for where drafts do not pay
    there are none, and no line can be drawn. What proposing takes is seen by itself."""

    LEAST_PART, USUAL_PART = 1 / 64, 1 / 32  # of a step, that a row adds
    PROPOSED_PART = 1 / 24  # of a step, that one more proposed token to each of its rows takes

    def __init__(self) -> None:
        self._part = self.USUAL_PART
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0
        self._proposed = self._proposing_s = 0.0

    def observe(self, num_rows: int, step_s: float) -> None:
        self._weight = _SLOW * self._weight + 1
        self._rows = _SLOW * self._rows + num_rows
        self._seconds = _SLOW * self._seconds + step_s
        self._squares = _SLOW * self._squares + num_rows * num_rows
        self._products = _SLOW * self._products + num_rows * step_s
        spread = self._weight * self._squares - self._rows * self._rows
        if spread > self._weight * self._weight:  # they were more than a row apart
            slope = (self._weight * self._products - self._rows * self._seconds) / spread
            self._part = max(slope * self._weight / self._seconds, self.LEAST_PART)
        else:
            self._part += _FORGETTING * (self.USUAL_PART - self._part)

    def observe_proposing(self, num_tokens: int, seconds: float) -> None:
        """So many, one after the other, to each of some rows."""
        self._proposed = _SLOW * self._proposed + num_tokens
        self._proposing_s = _SLOW * self._proposing_s + seconds

    @property
    def proposed_part(self) -> float:
        """Of a step, what it takes to propose one more token to each of its rows."""
        if not self._proposed or not self._seconds:
            return self.PROPOSED_PART
        return self._proposing_s / self._proposed * self._weight / self._seconds

    @property
    def row_s(self) -> float:
        """What one more row adds."""
        if not self._seconds:
            return 0.0
        return min(self._part * self._seconds / self._weight, self._seconds / self._rows)

    def worth(self, num_rows: int) -> float:
        """How likely a draft must be right for a row of it to save the time that it takes: what it
        adds to a step, over the time in which one token of `num_rows` is made."""
        if not self._seconds:
            return self.USUAL_PART * num_rows
        row_s = self.row_s
        step_s = self._seconds / self._weight + (num_rows - self._rows / self._weight) * row_s
        return row_s * num_rows / max(step_s, row_s)


def _worthwhile(rate: float, worth: float) -> int:
    """So many drafts, each right with `rate` where those before it are, that the last one is worth
    its time."""
    if worth <= 0:
        return SEARCHED_TOKENS
    return int(math.log(min(worth, 1.0)) / math.log(min(rate, BEST_RATE)))


class Drafts:
    """Adds drafts to the rows of a step."""

    def __init__(
        self,
        config: ResolvedConfig,
        memory: MemoryManager,
        is_exact: bool,
        layers: OwnLayers | None = None,
    ) -> None:
        """None are added unless the executor `is_exact`: they are to show in no answer."""
        engine = config.engine
        self._times: defaultdict[int, StepTimes] = defaultdict(StepTimes)  # by bits of `num_rows`
        self.answers = Answers()
        self.accepted_tokens = 0
        self.rejected_tokens = 0
        self.most = engine.max_draft_tokens if is_exact else 0  # of a sequence in a step
        self._layers, self._has_base_layer = layers, engine.draft_layer is not None
        has_layers = self._has_base_layer or layers is not None
        self.most_proposed = min(self.most, PROPOSED_MAX) if has_layers else 0
        self._max_rows = min(engine.max_running, engine.max_step_tokens)
        self._memory, self._vocab = memory, config.model.vocab

    def times(self, num_rows: int) -> StepTimes:
        """Of decode steps of about so many sequences."""
        return self._times[num_rows.bit_length()]

    def add(
        self, rows: list[ScheduledSequence], slack_s: float, others_wait: bool
    ) -> list[ScheduledSequence]:
        """The rows, those that decode with the drafts that are worth their time, which all
        together add no more than `slack_s`. No page is taken for them while others wait. O(rows),
        and a search of the text of each."""
        num_tokens = sum(row.num_tokens for row in rows)
        room = self._max_rows - num_tokens
        if not self.most or not rows or room <= 0 or num_tokens > 2 * len(rows):
            return rows
        times = self.times(len(rows))
        row_s, worth = times.row_s, times.worth(len(rows))
        if worth >= BEST_RATE:
            return rows
        if slack_s < math.inf:
            room = min(room, int(slack_s / row_s)) if row_s else 0
        drafted: list[ScheduledSequence] = []
        for row in rows:
            if room > 0 and row.num_tokens == 1 and row.samples and row.sequence.beams is None:
                most = min(room, self.most)
                drafts = self._drafts(row.sequence, most, worth, not others_wait)
                if drafts:
                    room -= len(drafts)
                    row = ScheduledSequence(row.sequence, 1, True, tuple(drafts))
            drafted.append(row)
        return drafted

    def _drafts(self, sequence: Sequence, most: int, worth: float, takes_page: bool) -> list[int]:
        """Of the sequence: each is right with its rate where all before it are."""
        drafting = sequence.drafting or self._begin(sequence)
        if sequence.guide is not None:
            forced = sequence.guide.forced_tokens()
            if forced:
                drafting.source = "grammar"
                return self._fitting(sequence, forced, most, takes_page)
        drafts = self._proposed(sequence, drafting)
        least = max(worth, drafting.layer_rate) if drafts else worth
        source, found = self._look_up(sequence, drafting, most, least)
        for length, rate in drafting.rates.items():
            if length != found.length:
                drafting.rates[length] += _RECOVERY * (drafting.first_rates[length] - rate)
        if found.token_ids:
            rate = drafting.rates[found.length]
            drafting.source, drafting.length = source, found.length
            drafts = found.token_ids[: _worthwhile(rate, worth)]
        elif drafts:
            drafting.source = "layer"
        if drafts and sequence.guide is not None:
            drafts = drafts[: sequence.guide.validate(drafts)]
        return self._fitting(sequence, drafts, most, takes_page)

    def wanted(self, rows: list[ScheduledSequence]) -> Proposals | None:
        """Of the rows of a step, those behind whose new tokens a trained layer is to propose what
        comes, their adapter's own where it is there, else the base's; as much as is likely enough
        to be worth its time. None where what was looked up is being verified: it tends to go on."""
        if not self.most_proposed or not rows:
            return None
        most: dict[int, int] = {}
        own: dict[int, str] = {}
        times = self.times(len(rows))
        least = times.worth(len(rows)) + times.proposed_part
        for place, row in enumerate(rows):
            sequence, adapter = row.sequence, row.sequence.request.adapter
            if not row.samples or row.num_scored or sequence.beams is not None:
                continue
            if not self._has_base_layer and (adapter is None or adapter.draft_layer is None):
                continue
            if len(sequence.token_ids) + len(row.drafts) + 1 >= sequence.max_length:
                continue  # it ends with this step, perhaps where the context does
            drafting = sequence.drafting or self._begin(sequence)
            if row.drafts and drafting.source != "layer":
                continue
            if drafting.layer_rate <= least:
                back = drafting.first_layer_rate - drafting.layer_rate
                drafting.layer_rate += _LAYER_RECOVERY * back
                continue
            layer = self._own_layer(adapter, sequence.request.tenant.key)
            if layer is not None:
                own[place] = layer
            if layer is not None or self._has_base_layer:
                most[place] = self.most_proposed
        return Proposals(most, least, own) if most else None

    def _own_layer(self, adapter: AdapterRef | None, tenant_key: str) -> str | None:
        """The digest of the adapter's own layer, if it is there."""
        if adapter is None or adapter.draft_layer is None or self._layers is None:
            return None
        return adapter.draft_layer if self._layers.want(adapter, tenant_key) else None

    def take(self, sequence: Sequence, proposed: list[int]) -> None:
        """What the layer proposes behind the sequence's tokens."""
        drafting = sequence.drafting
        if drafting is not None:
            drafting.proposed, drafting.proposed_at = proposed, len(sequence.token_ids)
            if not proposed:
                drafting.observe_layer(False)

    def _proposed(self, sequence: Sequence, drafting: Drafting) -> list[int]:
        is_next = drafting.proposed_at == len(sequence.token_ids)
        return drafting.proposed if is_next else []

    def _fitting(
        self, sequence: Sequence, found: list[int], most: int, takes_page: bool
    ) -> list[int]:
        """The first of them that are tokens, as many as there may be and as there are pages for."""
        found = known_tokens(found, self._vocab)
        most = min(most, len(found), sequence.max_length - 1 - len(sequence.token_ids))
        if most <= 0:
            return []
        return found[: self._memory.room_for_drafts(sequence, most, takes_page)]

    def _look_up(
        self, sequence: Sequence, drafting: Drafting, most: int, least: float
    ) -> tuple[Source, Found]:
        """What stands behind a run whose like was right more often than `least`, of whichever text
        has one first."""
        lengths = [length for length, rate in drafting.rates.items() if rate > least]
        if not lengths:
            return "text", NOTHING
        drafting.text.append(sequence.token_ids[drafting.known :])
        drafting.known = len(sequence.token_ids)
        tail = drafting.text.tail()
        if drafting.prediction is not None:
            found = drafting.prediction.after(tail, most, lengths=lengths)
            if not found.token_ids and sequence.num_output < MATCHES[-1]:
                said = sequence.token_ids[sequence.num_prompt :]
                found = drafting.prediction.behind(said, most)
            if found.token_ids and drafting.rates[found.length] > least:
                return "prediction", found
        found = drafting.text.after(tail, most, is_own=True, lengths=lengths)
        if found.token_ids:
            return "text", found
        text = None
        if sequence.request.tenant.keeps_answers:
            text = self.answers.of(sequence.request)
        found = NOTHING if text is None else text.after(tail, most, lengths=lengths)
        return "answers" if found.token_ids else "text", found

    def _begin(self, sequence: Sequence) -> Drafting:
        prediction = sequence.request.prediction_token_ids
        is_drawn = sequence.request.sampling.temperature >= DRAWN_TEMPERATURE
        first_rates = FIRST_DRAWN_RATES if is_drawn else FIRST_RATES
        layer_rate = FIRST_DRAWN_RATE if is_drawn else FIRST_RATE
        sequence.drafting = Drafting(
            Text(sequence.token_ids),
            len(sequence.token_ids),
            Text(prediction) if prediction else None,
            first_rates=first_rates,
            rates=first_rates.copy(),
            first_layer_rate=layer_rate,
            layer_rate=layer_rate,
        )
        return sequence.drafting

    def observe_step(self, step: ScheduledStep, step_s: float, result: StepResult) -> None:
        """A step of decode took so long, with what it proposed."""
        times = self.times(len(step))
        times.observe(len(step) + step.num_drafts, step_s - result.proposing_s)
        if result.proposals:
            # The one that was too unlikely took its time, too.
            longest = max(map(len, result.proposals.values()))
            times.observe_proposing(min(longest + 1, self.most_proposed), result.proposing_s)

    def observe(self, item: ScheduledSequence, num_accepted: int) -> int:
        """So many of the item's drafts are output; returns how many came to nothing."""
        drafting = item.sequence.drafting
        num_rejected = len(item.drafts) - num_accepted
        if drafting is not None:
            drafting.observe(num_accepted, num_rejected)
            meter = item.sequence.usage.meter
            meter.verify_drafts(drafting.source, num_accepted, num_rejected)
        self.accepted_tokens += num_accepted
        self.rejected_tokens += num_rejected
        return num_rejected

    def forget(self, namespace: str, digest: str) -> None:
        """An adapter is deleted: what the namespace was answered by it, and its layer."""
        self.answers.forget(namespace, digest)
        if self._layers is not None:
            self._layers.forget(digest)

    def counters(self) -> dict[str, float]:
        return {
            "drafts_accepted": self.accepted_tokens,
            "drafts_rejected": self.rejected_tokens,
            **({} if self._layers is None else self._layers.counters()),
        }

    def close(self) -> None:
        if self._layers is not None:
            self._layers.close()

    def ended(self, sequence: Sequence) -> None:
        """A sequence generates nothing more."""
        tenant = sequence.request.tenant
        if not tenant.keeps_answers:
            self.answers.forget_tenant(tenant.key)
        elif self.most and sequence.num_output:
            self.answers.add(sequence)
        sequence.drafting = None
