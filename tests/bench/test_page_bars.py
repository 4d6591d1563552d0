"""The page's bench says whether the first paint is in time."""

from bench.central_cost.page import say_bars


def test_each_view_s_first_paint_is_judged(capsys) -> None:
    say_bars({"now": {"first_paint_ms": 351.0}, "vms": {"first_paint_ms": 620.0}}, 50_000)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "  BAR first paint of now: 351 ms <= 500 (ratio 0.70): pass",
        "  BAR first paint of vms: 620 ms <= 500 (ratio 1.24): MISS",
    ]


def test_a_smaller_fleet_is_no_evidence(capsys) -> None:
    say_bars({"now": {"first_paint_ms": 100.0}}, 50)
    assert "a pass or a miss is no evidence" in capsys.readouterr().out
