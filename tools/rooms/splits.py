"""Names that leave a module: old module -> [(names, new module, docstring of a new one)]. One that exists gets them."""
SPLITS = {
    "agent.state": [
        (["MetricView", "SourceState", "SourceView", "VmView"], "agent.sampling.views",
         "What a tick leaves to be shown: a metric, a source, a VM. Plain values."),
        (["UplinkState", "UplinkView"], "agent.uplink.view", "The state of the stream to central, to be shown. Plain values."),
    ],
    "agent.decisions": [(["_first", "VmDecision", "HostDecision"], "agent.antagonists.vm_decision",
        "The decision on one VM, and on the host. Plain values.")],
    "agent.daemon": [(["_DEADLINE_S", "make_plans"], "agent.sampling.startup", "The sources of this host, made as configured.")],
    "collector.registry": [(["PART_SOURCES", "why_absent", "source_of"], "collector.inventory.coverage")],
    "central.journal_tables": [(["EventRow"], "central.validation.events")],
    "central.versions": [(["NotFiniteError"], "central.lake.errors")],
    "central.lake_losses": [(["note_deletion", "deleted_through", "_notes", "_FOLDER", "_What"], "central.lake.retention",
        "Through which day retention deletes, noted in the lake before anything is deleted.")],
    "central.placement.live": [(["BUSY_CORES"], "central.runtimes.lake_rows")],
}
