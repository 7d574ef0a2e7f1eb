// Of the SPLIT workgroups of a tile, whose parts are stored, the one that arrives last goes on; its `counter` is zero again.
    storageBarrier();
    if (lane == 0u) { place = atomicAdd(&arrived[counter], 1u); }
    if (workgroupUniformLoad(&place) != SPLIT - 1u) { return; }
    storageBarrier();
    if (lane == 0u) { atomicStore(&arrived[counter], 0u); }
