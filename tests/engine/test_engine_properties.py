"""The whole engine under random submit, abort, load, forget and failure, in arenas so small that it
must preempt and evict: pages are conserved after every step, outputs are those of each sequence
run alone, and every sequence ends exactly once."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from engine_machine import EngineMachine

EngineMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestEngineMachine = EngineMachine.TestCase
