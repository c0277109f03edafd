// Says in the code which lock guards what. Clang's thread safety analysis checks it
// (-Wthread-safety, an error in the clang build); for other compilers it is nothing. The attributes
// are described at https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.
#pragma once

#ifdef __clang__
#define LOCKSTEP_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define LOCKSTEP_THREAD_ATTRIBUTE(...)
#endif

// Types: a lock; an object that holds a lock while it lives.
#define LOCKSTEP_CAPABILITY(name) LOCKSTEP_THREAD_ATTRIBUTE(capability(name))
#define LOCKSTEP_SCOPED_CAPABILITY LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable)

// Members: read and written only with the lock held.
#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(mutex))

// Functions and lambdas: called with the lock held; called without it, since they take it.
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

// Functions that take the lock and keep it; that give it back.
#define LOCKSTEP_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE(...) LOCKSTEP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
