#!/bin/sh
# What /usr/bin/whitepanda leads to, the same in both packages. Commands about this host run in the agent's environment,
# which has the host's libraries; all others in central's, which has everything else. Where only one is installed, it runs.
agent=/opt/whitepanda/agent/bin/whitepanda
central=/opt/whitepanda/central/bin/whitepanda
case "${1-}" in
    @AGENT_COMMANDS@) first=$agent second=$central ;;
    *) first=$central second=$agent ;;
esac
[ -x "$first" ] || first=$second
exec "$first" "$@"
