// The priority of threads. Any thread may lower its own; raising it again takes a privilege that
// services do not have, so that a thread that has lowered itself stays there.
#pragma once

namespace lockstep {

// Below all threads of ordinary priority: where these want a processor, this one has about a tenth
// of it, in slices of a tenth of a millisecond where the kernel grants that (Linux 6.12 and newer;
// sched(7), "SCHED_BATCH", and sched_setattr(2)). Where nothing is granted, nothing happens.
void lower_thread_priority();

}  // namespace lockstep
