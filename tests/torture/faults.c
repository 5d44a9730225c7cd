/* Loaded before the C library: counts what a process does to the files below a folder, and makes
 * the n-th of these operations fail, or kills the process at it.
 *
 * An operation is a write, an fsync or a rename.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, FAIL_ONCE, FAIL_FROM, KILL_BEFORE, KILL_HALFWAY, KILL_AFTER };

static char folder[4096];
static atomic_long seen, at = -1;
static int mode, number;

void faults_arm(const char *below, long operation, int what, int error) {
    strncpy(folder, below, sizeof folder - 1);
    seen = 0;
    at = operation;
    mode = what;
    number = error;
}

long faults_seen(void) { return seen; }

/* Whether the n-th operation is this one, or, where all from it on fail, before it. */
static int hit(long mine) { return at > 0 && (mine == at || (mode == FAIL_FROM && mine > at)); }

static int below(const char *path) {
    return folder[0] && strncmp(path, folder, strlen(folder)) == 0;
}

static int descriptor_below(int descriptor) {
    char link[64], path[4096];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* What happens before an operation; returns 1 if it is to fail. */
static int before(long mine) {
    if (!hit(mine)) return 0;
    if (mode == KILL_BEFORE) die();
    if (mode == FAIL_ONCE || mode == FAIL_FROM) {
        errno = number;
        return 1;
    }
    return 0;
}

static void after(long mine) {
    if (hit(mine) && (mode == KILL_AFTER || mode == KILL_HALFWAY)) die();
}

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = REAL(write, ssize_t (*)(int, const void *, size_t));
    if (!descriptor_below(descriptor)) return real(descriptor, data, size);
    long mine = ++seen;
    if (before(mine)) return -1;
    ssize_t done = real(descriptor, data, hit(mine) && mode == KILL_HALFWAY ? size / 2 : size);
    after(mine);
    return done;
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    ssize_t (*real)(int, const struct iovec *, int) =
        REAL(writev, ssize_t (*)(int, const struct iovec *, int));
    if (!descriptor_below(descriptor)) return real(descriptor, parts, count);
    long mine = ++seen;
    if (before(mine)) return -1;
    ssize_t done = real(descriptor, parts, hit(mine) && mode == KILL_HALFWAY ? 1 : count);
    after(mine);
    return done;
}

int fsync(int descriptor) {
    int (*real)(int) = REAL(fsync, int (*)(int));
    if (!descriptor_below(descriptor)) return real(descriptor);
    long mine = ++seen;
    if (before(mine)) return -1;
    int done = real(descriptor);
    after(mine);
    return done;
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = REAL(rename, int (*)(const char *, const char *));
    if (!below(to)) return real(from, to);
    long mine = ++seen;
    if (before(mine)) return -1;
    int done = real(from, to);
    after(mine);
    return done;
}
