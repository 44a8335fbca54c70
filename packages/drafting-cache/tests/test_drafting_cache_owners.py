"""One owner of a builder's addresses: no copies, no two calls at once, under debug one thread."""

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsacp.core import AliasError, LayoutError
from dsacp.kernels import stage_inputs

Make = Callable[..., Any]
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}


def words(host: Any) -> list[torch.Tensor]:
    return [storage.view(torch.int32).clone() for storage in host.builder.storages()]


@pytest.mark.parametrize("how", COPIES)
def test_what_owns_addresses_is_not_copied(make_host: Make, target_specs: Make, how: str) -> None:
    """A deep copy of a builder wrote into the original: its launches keep their addresses."""
    host = make_host(groups=target_specs(), num_steps=1)
    step = host.builder.build(host.batch([4], [20]))
    session = host.builder._active()
    owners = [
        host.builder,
        session,
        session.buffers,
        session.buffers.words,
        session.buffers.floats,
        session.buffers.rope,
        session._shape(host.builder._shapes.all(host.batch([4], [20]), None), 0),
        step.rope,
        step.rope.cos,
        {"in a container": step},
    ]
    before = words(host)
    for owner in owners if how != "copy" else owners[:-1]:
        with pytest.raises(AliasError, match=f"a {how} of it, .*original.*make a"):
            COPIES[how](owner)
    assert all(map(torch.equal, words(host), before))


def test_a_call_beside_another_threads_call_is_refused(
    make_host: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One builder in two threads gave 32 wrong results of 600 builds, and no error."""
    host, fresh = make_host(), make_host()
    batch, other = host.batch([4, 4], [40, 30]), host.batch([4] * 3, [9, 20, 70], bucket=16)
    inside, go = threading.Event(), threading.Event()

    def wait_halfway(*args: Any, **kwargs: Any) -> None:
        inside.set()
        assert go.wait(30)
        stage_inputs(*args, **kwargs)

    monkeypatch.setattr("dsacp.drafting_cache.session.stage_inputs", wait_halfway)
    thread = threading.Thread(target=host.builder.build_all, args=(batch,))
    thread.start()
    assert inside.wait(30)
    calls: list[Callable[[], object]] = [
        lambda: host.builder.build_all(other),
        lambda: host.builder.build(other),
        lambda: host.builder.stage(other),
        lambda: host.builder.refresh(16),
        lambda: host.builder.bind(host.tables),
        host.builder.warmup,
        host.builder.release,
        host.builder.restore,
    ]
    try:
        for call in calls:
            with pytest.raises(AliasError, match="one call of a builder at a time"):
                call()
    finally:
        go.set()
        thread.join()
    fresh.builder.build_all(batch)
    assert all(map(torch.equal, words(host), words(fresh)))
    host.builder.build_all(other)


def in_thread(call: Callable[[], object]) -> list[Exception]:
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except AliasError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors


def test_debug_knows_the_owner_and_bind_hands_over(make_host: Make) -> None:
    """Two threads that take turns overwrite each other's views, and never meet inside a call."""
    host = make_host(debug=True)
    batch = host.batch([4, 4], [40, 30])
    assert not in_thread(lambda: make_host().builder.build_all(batch))
    errors = in_thread(lambda: host.builder.build_all(batch))
    assert len(errors) == 1
    assert "which made or bound this builder" in str(errors[0])
    assert not in_thread(lambda: (host.builder.bind(host.tables), host.builder.build_all(batch)))
    with pytest.raises(AliasError, match="bind\\(\\) again in the thread that takes it over"):
        host.builder.build_all(batch)


def test_a_builder_moves_to_another_thread_between_calls(make_host: Make) -> None:
    host, fresh = make_host(), make_host()
    batch = host.batch([4, 4], [40, 30])
    assert not in_thread(lambda: host.builder.build_all(batch))
    fresh.builder.build_all(batch)
    assert all(map(torch.equal, words(host), words(fresh)))


def test_a_refused_call_ends_its_turn(make_host: Make) -> None:
    host = make_host()
    for build in (host.builder.build, host.builder.build_all, host.builder.stage):
        with pytest.raises(LayoutError):
            build(host.batch([4], [-1]))
    host.builder.build_all(host.batch([4], [9]))


@pytest.mark.parametrize("index", [1.5, True])
def test_an_index_or_a_step_count_is_a_whole_number(make_host: Make, index: Any) -> None:
    """A draft index of 1.5 passed the range check and chose no bank."""
    host = make_host()
    with pytest.raises(LayoutError, match="draft_index"):
        host.builder.build_for_drafting(host.batch([1], [9]), index)
    with pytest.raises(LayoutError, match="num_steps"):
        host.builder.build_all(host.batch([4], [9]), index)
