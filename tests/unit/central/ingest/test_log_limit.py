"""Log lines about what others send: by host and reason, with a count of what was left out, in bounded memory."""

from central.ingest.log_limit import LogLimit


class Log:
    """A clock, a limit, and the lines that it let through."""

    def __init__(self, **limits) -> None:
        self.now_s = 1000.0
        self.lines: list[dict] = []
        self.limit = LogLimit(
            lambda event, **fields: self.lines.append({"event": event, **fields}), clock_s=lambda: self.now_s, **limits
        )

    def __call__(self, host: str, reason: str = "bad", times: int = 1) -> list[dict]:
        """Give it lines; returns those that were written."""
        before = len(self.lines)
        for _ in range(times):
            self.limit("refused", host=host, reason=reason, detail="d")
        return self.lines[before:]


def test_a_host_and_reason_has_one_line_in_an_interval_and_the_next_says_how_many_were_left_out() -> None:
    log = Log(every_s=60)
    line = {"event": "refused", "host": "h1", "reason": "bad", "detail": "d"}
    assert log("h1", times=5) == [line]
    assert log("h1", "worse") == [line | {"reason": "worse"}], "another reason has a line of its own"
    assert log("h2") == [line | {"host": "h2"}], "and another host"
    log.now_s += 59.9
    assert log("h1") == []
    log.now_s += 0.1
    assert log("h1") == [line | {"left_out": 5}]
    assert log("h2") == [line | {"host": "h2"}]
    log.now_s += 60
    assert log("h1") == [line], "none since"


def test_the_first_lines_may_be_several() -> None:
    log = Log(most_lines=3)
    assert len(log("h1", times=3)) == 3
    assert log("h1", times=2) == []
    log.now_s += 60
    assert [line.get("left_out") for line in log("h1", times=2)] == [2, None]


def test_of_one_reason_so_many_hosts_have_lines_and_the_others_are_counted() -> None:
    log = Log(most_hosts=2)
    assert [len(log(f"h{number}", times=2)) for number in range(5)] == [1, 1, 0, 0, 0]
    log.now_s += 60
    assert [line.get("of_other_hosts_left_out") for line in log("h4")] == [6]
    assert [line.get("left_out") for line in log("h1")] == [1]
    log.now_s += 60
    assert log("h9")[0]["of_other_hosts_left_out"] == 1, "h0 has not come again"


def test_memory_is_bounded_whoever_comes() -> None:
    log = Log(most_hosts=20)
    for number in range(10_000):
        log.now_s += 0.1
        log(f"h{number}")
    (lines,) = log.limit._by_reason.values()
    assert len(lines.hosts) + len(lines.before) <= 2 * 20
    assert len(log.lines) <= 20 * (1000 / 60 + 1)


def test_tens_of_thousands_of_lines_of_six_hosts_in_90_seconds_are_a_few() -> None:
    log = Log()
    reasons = ("malformed", "oversized", "bad_cpi", "bad_time", "future_time", "too_many_rows")
    for number in range(45_759):
        log.now_s = 1000 + 90 * number / 45_759
        log(f"h{number % 6}", reasons[number // 6 % len(reasons)])
    assert len(log.lines) == 2 * 6 * len(reasons)
    for _ in range(2):  # what was left out after a host's last line is counted at the latest then
        log.now_s += 60
        for host in range(6):
            for reason in reasons:
                log(f"h{host}", reason)
    counted = sum(1 + line.get("left_out", 0) + line.get("of_other_hosts_left_out", 0) for line in log.lines)
    assert counted == 45_759 + 2 * 36
