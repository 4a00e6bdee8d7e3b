// SPDX-License-Identifier: BSD-2-Clause
// Mutexes and condition variables with annotations for clang's -Wthread-safety; libstdc++'s have
// none. The preset `clang` checks them. The analysis treats a lambda as a separate function: a
// lambda that is called with the lock held must be annotated, `[&]() REQUIRES(mutex_) { ... }`.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <utility>

#include "base/check.hpp"

#if defined(__clang__)
#define SLUICE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define SLUICE_THREAD_ANNOTATION(x)
#endif

#define CAPABILITY(x) SLUICE_THREAD_ANNOTATION(capability(x))
#define SCOPED_CAPABILITY SLUICE_THREAD_ANNOTATION(scoped_lockable)
#define GUARDED_BY(x) SLUICE_THREAD_ANNOTATION(guarded_by(x))
#define PT_GUARDED_BY(x) SLUICE_THREAD_ANNOTATION(pt_guarded_by(x))
#define REQUIRES(...) SLUICE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) SLUICE_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define EXCLUDES(...) SLUICE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define ACQUIRED_AFTER(...) SLUICE_THREAD_ANNOTATION(acquired_after(__VA_ARGS__))
#define ACQUIRED_BEFORE(...) SLUICE_THREAD_ANNOTATION(acquired_before(__VA_ARGS__))
#define ACQUIRE(...) SLUICE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) SLUICE_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) SLUICE_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE_SHARED(...) SLUICE_THREAD_ANNOTATION(try_acquire_shared_capability(__VA_ARGS__))
#define RELEASE(...) SLUICE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) SLUICE_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY() SLUICE_THREAD_ANNOTATION(assert_capability())
#define ASSERT_SHARED_CAPABILITY() SLUICE_THREAD_ANNOTATION(assert_shared_capability())
#define NO_THREAD_SAFETY_ANALYSIS SLUICE_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace sluice {

class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }

  // For functions whose callers must hold it. Aborts if no thread does; which one does is not
  // known.
  void assert_held() ASSERT_CAPABILITY() {
    const bool is_free = mutex_.try_lock();
    SLUICE_CHECK(!is_free, "the mutex is locked by the caller");
  }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Writers have priority: otherwise a steady stream of readers could block them forever. So no
// thread may lock it twice for reading.
class CAPABILITY("mutex") SharedMutex {
 public:
  SharedMutex() {
    pthread_rwlockattr_t attributes;
    ::pthread_rwlockattr_init(&attributes);
    ::pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    ::pthread_rwlock_init(&lock_, &attributes);
    ::pthread_rwlockattr_destroy(&attributes);
  }
  ~SharedMutex() { ::pthread_rwlock_destroy(&lock_); }
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() ACQUIRE() { ::pthread_rwlock_wrlock(&lock_); }
  void unlock() RELEASE() { ::pthread_rwlock_unlock(&lock_); }
  void lock_shared() ACQUIRE_SHARED() { ::pthread_rwlock_rdlock(&lock_); }
  bool try_lock_shared() TRY_ACQUIRE_SHARED(true) {
    return ::pthread_rwlock_tryrdlock(&lock_) == 0;
  }
  void unlock_shared() RELEASE_SHARED() { ::pthread_rwlock_unlock(&lock_); }

  // As Mutex::assert_held(). While it is held, these only read one word.
  void assert_held() ASSERT_CAPABILITY() {
    const bool is_free = ::pthread_rwlock_tryrdlock(&lock_) == 0;
    SLUICE_CHECK(!is_free, "the lock is held exclusively by the caller");
  }
  void assert_held_shared() ASSERT_SHARED_CAPABILITY() {
    const bool is_free = ::pthread_rwlock_trywrlock(&lock_) == 0;
    SLUICE_CHECK(!is_free, "the lock is held by the caller");
  }

 private:
  pthread_rwlock_t lock_;
};

// Locks a Mutex until the end of the scope, except between unlock() and lock().
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // The caller has locked it already, with try_lock().
  MutexLock(Mutex& mutex, std::adopt_lock_t) REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() RELEASE() {
    if (is_held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() RELEASE() {
    mutex_.unlock();
    is_held_ = false;
  }
  void lock() ACQUIRE() {
    mutex_.lock();
    is_held_ = true;
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

class SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) ACQUIRE_SHARED(mutex) : mutex_(mutex) {
    mutex_.lock_shared();
  }
  ~SharedLock() RELEASE() { mutex_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class SCOPED_CAPABILITY ExclusiveLock {
 public:
  explicit ExclusiveLock(SharedMutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ExclusiveLock() RELEASE() { mutex_.unlock(); }
  ExclusiveLock(const ExclusiveLock&) = delete;
  ExclusiveLock& operator=(const ExclusiveLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// A condition variable for a Mutex. Callers must check their condition in a loop around the wait,
// because spurious wake-ups happen.
class CondVar {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  // These two return false after a timeout.
  bool wait_until(Mutex& mutex, TimePoint deadline) REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = changed_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  bool wait_for(Mutex& mutex, std::chrono::nanoseconds time) REQUIRES(mutex) {
    return wait_until(mutex, std::chrono::steady_clock::now() + time);
  }

 private:
  std::condition_variable changed_;
};

// A condition variable for threads with a stop_token: a request to stop ends the wait, too. It is
// more expensive than CondVar.
class StopCondVar {
 public:
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

  void wait(Mutex& mutex) REQUIRES(mutex) { changed_.wait(mutex); }
  // Returns false after a timeout.
  bool wait_for(Mutex& mutex, std::chrono::nanoseconds time) REQUIRES(mutex) {
    return changed_.wait_for(mutex, time) == std::cv_status::no_timeout;
  }
  // Waits until `is_so` returns true or a stop is requested; returns the last result of `is_so`,
  // which is called with the mutex held.
  template <typename Condition>
  bool wait(Mutex& mutex, const std::stop_token& stop, Condition is_so) REQUIRES(mutex) {
    return changed_.wait(mutex, stop, std::move(is_so));
  }
  // Waits for this time or until a stop is requested; notifications do not end it.
  void sleep(Mutex& mutex, const std::stop_token& stop, std::chrono::nanoseconds time)
      REQUIRES(mutex) {
    changed_.wait_for(mutex, stop, time, [] { return false; });
  }

 private:
  std::condition_variable_any changed_;
};

}  // namespace sluice
