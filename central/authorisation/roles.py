"""The role that each RPC requires, and whether a certificate has it. RPCs without a role are refused to all."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc

from central.authorisation.revocation_list import Revoked, revoked_text
from whitepanda.common.tls import shown_names


class Role(enum.Enum):
    """Whom an RPC is for."""

    ANYONE = enum.auto()
    #: Hosts and importers: `central.ingest.handshake` compares the Hello with the certificate.
    HOST = enum.auto()
    OPERATOR = enum.auto()  # names in central.operators


_FLEET = (
    "CompareSides", "GetDataHealth", "GetFacts", "GetFleetStatus", "GetHostTimeline", "GetIncident", "GetJob",
    "GetOverview", "GetVmHistory", "ListCoefficients", "ListEvents", "ListFacts", "ListHosts", "ListIncidents",
    "ListJobLoadings", "ListJobStatistics", "ListSuspectJobs", "PlanObservation", "PredictRuntime", "RankHosts",
)  # fmt: skip
ROLES: Mapping[str, Role] = {
    "/grpc.health.v1.Health/Check": Role.ANYONE,
    "/grpc.health.v1.Health/List": Role.ANYONE,  # not served
    "/grpc.health.v1.Health/Watch": Role.OPERATOR,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Role.OPERATOR,
    "/whitepanda.v1.AgentStream/Connect": Role.HOST,
    **{f"/whitepanda.v1.Fleet/{method}": Role.OPERATOR for method in _FLEET},
}
#: All of HTTP beyond loopback: the fleet API, the page, /metrics and /healthz.
HTTP_ROLE = Role.OPERATOR


@dataclass(frozen=True)
class Access:
    """Decides who may call."""

    operators: tuple[str, ...]  # certificate names
    revoked: Revoked = field(default_factory=Revoked)

    def refusal(self, role: Role, names: frozenset[str], serial: str) -> tuple[grpc.StatusCode, str] | None:
        """Return the status and the text of a refusal; None if the caller, by names and serial, may call.

        The required role is ANYONE or OPERATOR; a HOST is checked with its Hello (`central.ingest.handshake`). Names
        and serial are those of `whitepanda.common.tls.peer_certificate`.
        """
        if serial in self.revoked:
            return grpc.StatusCode.UNAUTHENTICATED, revoked_text(serial)
        if role is Role.OPERATOR and names.isdisjoint(self.operators):
            return grpc.StatusCode.PERMISSION_DENIED, (
                f"only operators may ask; none of this certificate's names ({shown_names(names)}) is in "
                "central.operators"
            )
        return None
