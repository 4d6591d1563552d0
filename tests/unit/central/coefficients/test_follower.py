"""The version in force follows the lake's newest one."""

from central.build.builder import Builder
from central.coefficients.follower import VersionFollower
from central.coefficients.versions import VersionStore
from central.lake.segments import Lake
from tests.unit.central.build.test_builds import SECTION, write_day


async def test_a_replica_catches_up_with_what_another_built(tmp_path):
    lake = Lake(tmp_path / "lake")
    behind, ahead = VersionFollower(VersionStore(lake.objects)), Builder(SECTION, lake)
    reported = []
    behind.on_version.append(lambda built: reported.append(built.version))
    write_day(lake, 0, 1)
    for number in (1, 2):
        ahead.build_once()
        await behind.catch_up()
        assert (behind.current.version, reported) == (number, list(range(1, number + 1)))
        write_day(lake, number, number + 1)
    await behind.catch_up()  # nothing newer: nothing told
    assert (behind.current.version, reported) == (2, [1, 2])
