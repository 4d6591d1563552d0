"""Work on several engines: results in order, as many at once as there are engines, and the rest when one fails."""

import threading

import pytest

from central.build.engine import duckdb_engines, on_engines


class Fake:
    def __init__(self):
        self.reported = threading.Event()

    def interrupt(self):
        self.reported.set()


def test_results_are_in_the_items_order_though_later_ones_end_first():
    second = threading.Event()

    def work(_engine, item):
        if item == 1:
            assert second.wait(20)  # so two run at once
        elif item == 2:
            second.set()
        return item * 10

    assert on_engines([Fake(), Fake()], [1, 2, 3, 4, 5], work) == [10, 20, 30, 40, 50]


def test_an_engine_does_one_thing_at_a_time():
    busy, worst = {}, []
    engines = [Fake(), Fake(), Fake()]

    def work(engine, _item):
        busy[id(engine)] = busy.get(id(engine), 0) + 1
        worst.append(busy[id(engine)])
        threading.Event().wait(0.001)
        busy[id(engine)] -= 1

    on_engines(engines, range(50), work)
    assert set(worst) == {1}


def test_the_first_failure_is_raised_what_runs_is_interrupted_and_the_rest_is_not_begun():
    engines, begun, other_runs = [Fake(), Fake()], [], threading.Event()

    def work(engine, item):
        begun.append(item)
        if item == 1:
            other_runs.set()
            assert engine.reported.wait(20)
            raise RuntimeError("interrupted")
        if item == 2:
            assert other_runs.wait(20)
            raise ValueError("first")
        return item

    with pytest.raises(ValueError, match="first"):
        on_engines(engines, [1, 2, *range(3, 100)], work)
    assert len(begun) < 98


def test_one_engine_works_in_this_thread():
    assert on_engines([Fake()], "ab", lambda _engine, item: (item, threading.get_ident())) == [
        ("a", threading.get_ident()),
        ("b", threading.get_ident()),
    ]


@pytest.mark.parametrize(
    ("days", "threads", "each"), [(1, 4, (4,)), (2, 4, (2, 2)), (9, 2, (1, 1)), (0, 2, (2,)), (3, 1, (1,))]
)
def test_engines_share_threads_and_memory(tmp_path, days, threads, each):
    with duckdb_engines(days, memory_limit_mib=1024, threads=threads, spill_dir=tmp_path) as engines:
        reported = [
            engine.connection.con.execute(
                "SELECT current_setting('threads'), current_setting('memory_limit')"
            ).fetchone()
            for engine in engines
        ]
    assert tuple(row[0] for row in reported) == each
    assert {row[1] for row in reported} == {f"{1024 // len(each)}.0 MiB" if len(each) > 1 else "1.0 GiB"}
