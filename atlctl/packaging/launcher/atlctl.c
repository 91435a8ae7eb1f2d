/* The one executable file: unpacks the tree that it carries, once, into a folder of the user's own, and becomes its
 * Python.
 *
 * Linked statically, it asks nothing of the machine but a kernel and a folder to write to. The folder is named by the
 * tree's hash. Whatever another user could have put or could change there is not used: see `trusted`. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "inflate.h"

/* On the compiler's command line: NAME of the tree, START (what Python is told before the user's words). Behind this
 * program in the same file: the payload, its size in 8 bytes, MARK. */
static const char MARK[] = "atlctl/1";
enum { BLOCK = 1 << 20, PLACES = 5, TRAILER = 16 };

static const uint8_t *payload, *payload_end;
#define NOT_OWN "is not a folder of your own that you alone can write to"
static char reasons[PLACES][PATH_MAX + 256];
static int reason_count;

static void erase(int folder, const char *name);
static struct {
    int folder;
    const char *name;
} unfinished; /* what this start unpacks into, until that has got its name */

static void damaged(void) {
    if (unfinished.name) erase(unfinished.folder, unfinished.name);
    fputs("error: this file is damaged\nhint: copy it again, and compare checksums\n", stderr);
    exit(1);
}

/* Why a place is no good; 0, so that it can be returned. */
static int no(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(reasons[reason_count++ % PLACES], sizeof *reasons, format, values);
    va_end(values);
    return 0;
}

static uint32_t number(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t adler32(const uint8_t *data, size_t size) {
    uint32_t low = 1, high = 0;
    while (size) {
        size_t turn = size < 5552 ? size : 5552; /* as many as fit before 32 bits overflow */
        size -= turn;
        while (turn--) high += low += *data++;
        low %= 65521, high %= 65521;
    }
    return high << 16 | low;
}

/* Finds the payload in the file that this program is. */
static void open_payload(void) {
    const char *started = (const char *)getauxval(AT_EXECFN);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file < 0 && started) file = open(started, O_RDONLY | O_CLOEXEC); /* no /proc */
    struct stat found;
    if (file < 0 || fstat(file, &found)) {
        fprintf(stderr, "error: this program cannot read its own file: %s\n", strerror(errno));
        fprintf(stderr, "hint: chmod +r %s\n", started ? started : "it");
        exit(1);
    }
    size_t size = (size_t)found.st_size;
    const uint8_t *whole = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (whole == MAP_FAILED || size < TRAILER || memcmp(whole + size - 8, MARK, 8)) {
        fputs("error: this file is cut short\nhint: copy it again, and compare sizes\n", stderr);
        exit(1);
    }
    payload_end = whole + size - TRAILER;
    size_t length = number(payload_end) | (size_t)number(payload_end + 4) << 32;
    if (length > size - TRAILER) damaged();
    payload = payload_end - length;
    close(file);
}

/* One block of the payload: sizes packed and unpacked, checksum, data. Returns what follows it. */
static const uint8_t *unpack(const uint8_t *at, uint8_t *out, size_t room, size_t *size) {
    if (payload_end - at < 12) damaged();
    size_t packed = number(at);
    *size = number(at + 4);
    if (packed > (size_t)(payload_end - at - 12) || *size > room) damaged();
    if (!inflate(at + 12, packed, out, *size) || adler32(out, *size) != number(at + 8)) damaged();
    return at + 12 + packed;
}

/* Removes `name` in `folder` with all below it. What cannot be removed stays. */
static void erase(int folder, const char *name) {
    int inner = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *listing = inner < 0 ? NULL : fdopendir(inner);
    if (listing) {
        for (struct dirent *entry; (entry = readdir(listing));)
            if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && unlinkat(inner, entry->d_name, 0))
                erase(inner, entry->d_name);
        closedir(listing);
    }
    unlinkat(folder, name, AT_REMOVEDIR);
}

static int write_all(int file, const uint8_t *data, size_t size) {
    while (size) {
        ssize_t written = write(file, data, size);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return 0;
        data += written, size -= (size_t)written;
    }
    return 1;
}

/* Writes the carried tree into the empty folder `tree`. Returns 0 with errno where that fails. */
static int write_tree(int tree) {
    uint8_t *block = malloc(BLOCK), *table = malloc(BLOCK);
    size_t size, left = 0, at = 0;
    int file = -1, fine = block && table;
    if (!fine) return 0;
    const uint8_t *next = unpack(payload, table, BLOCK, &size), *entry = table, *end = table + size;
    /* The table: a letter (directory, file, executable file), the size, the path with a 0 behind it. Then the contents
     * of all files, one behind the other, in blocks. */
    while (fine && entry < end) {
        char kind = (char)entry[0];
        size_t wanted = number(entry + 1);
        const char *path = (const char *)entry + 5;
        entry += 5 + strlen(path) + 1;
        if (kind == 'd') {
            fine = !mkdirat(tree, path, 0700);
            continue;
        }
        file = openat(tree, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kind == 'x' ? 0500 : 0400);
        fine = file >= 0;
        while (fine && wanted) {
            if (!left) {
                next = unpack(next, block, BLOCK, &left);
                at = 0;
                if (!left) damaged();
            }
            size_t part = wanted < left ? wanted : left;
            fine = write_all(file, block + at, part);
            at += part, left -= part, wanted -= part;
        }
        if (file >= 0 && close(file)) fine = 0;
    }
    int failed = errno;
    free(block), free(table);
    errno = failed;
    return fine;
}

/* Ours, and writable for nobody else. */
static int own(const struct stat *found) {
    return S_ISDIR(found->st_mode) && found->st_uid == geteuid() && !(found->st_mode & (S_IWGRP | S_IWOTH));
}

/* Whether nobody but root and this user can put something else in place of `path`, which has no links in it. */
static int trusted(const char *path) {
    char above[PATH_MAX];
    struct stat found;
    if (lstat(path, &found)) return no("%s: %s", path, strerror(errno));
    if (!own(&found)) return no("%s " NOT_OWN, path);
    strcpy(above, path);
    for (char *slash; (slash = strrchr(above, '/'));) {
        slash[slash == above] = 0;
        if (stat(above, &found)) return no("%s: %s", above, strerror(errno));
        int shared = found.st_mode & (S_IWGRP | S_IWOTH) && !(found.st_mode & S_ISVTX);
        if (shared || (found.st_uid && found.st_uid != geteuid())) return no("%s: others can change %s", path, above);
        if (slash == above) break;
    }
    return 1;
}

/* The folder `path` and all above it that are missing, for this user alone. */
static int make_folders(const char *path) {
    char part[PATH_MAX];
    for (size_t length = 1;; length++) {
        if (path[length] && path[length] != '/') continue;
        memcpy(part, path, length);
        part[length] = 0;
        if (mkdir(part, 0700) && errno != EEXIST && errno != EISDIR) {
            struct stat found;
            int failed = errno;
            if (stat(part, &found)) return no("%s: %s", part, strerror(failed));
        }
        if (!path[length]) return 1;
    }
}

/* Unpacks into a folder of another name, which then gets its own in one step: a tree is whole or not there. */
static int fill_in(int folder, const char *path) {
    struct stat found;
    char fresh[64];
    int lock = openat(folder, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0) return no("%s: %s", path, strerror(errno));
    int alone, failed = 0;
    while ((alone = flock(lock, LOCK_EX)) && errno == EINTR) {}
    if (fstatat(folder, NAME, &found, AT_SYMLINK_NOFOLLOW) == 0) {
        close(lock);
        return 1; /* another start was first */
    }
    DIR *listing = alone ? NULL : fdopendir(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (listing) { /* under the lock nobody else unpacks: these were left by one that was killed */
        for (struct dirent *entry; (entry = readdir(listing));)
            if (!strncmp(entry->d_name, ".new-", 5)) erase(folder, entry->d_name);
        closedir(listing);
    }
    snprintf(fresh, sizeof fresh, ".new-%ld-%08x", (long)getpid(), (unsigned)(uintptr_t)&found);
    if (isatty(2)) fprintf(stderr, "unpacking into %s, this once\n", path);
    open_payload();
    unfinished.folder = folder, unfinished.name = fresh;
    int made = !mkdirat(folder, fresh, 0700);
    int tree = made ? openat(folder, fresh, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    int fine = tree >= 0 && write_tree(tree);
    if (!fine) failed = errno;
    else if (renameat(folder, fresh, folder, NAME)) failed = errno == EEXIST || errno == ENOTEMPTY ? 0 : errno;
    if (tree >= 0) close(tree);
    erase(folder, fresh); /* finds nothing where it got its name */
    unfinished.name = NULL;
    close(lock);
    return failed ? no("%s: %s", path, strerror(failed)) : 1;
}

/* Whether the tree stands in the folder `wanted`, whole and safe; unpacks it where it is missing. `tree`: its path. */
static int prepare(const char *wanted, char *tree) {
    char folder[PATH_MAX];
    struct statvfs system;
    struct stat found;
    if (strlen(wanted) > PATH_MAX - 128) return no("%s: this name is too long", wanted);
    if (!make_folders(wanted)) return 0;
    if (lstat(wanted, &found) || !S_ISDIR(found.st_mode)) return no("%s " NOT_OWN, wanted);
    if (!realpath(wanted, folder)) return no("%s: %s", wanted, strerror(errno));
    if (strlen(folder) > PATH_MAX - 128) return no("%s: this name is too long", folder);
    if (strpbrk(folder, ":;$")) return no("%s: the loader of libraries would misread this name", folder);
    if (!trusted(folder)) return 0;
    if (!statvfs(folder, &system) && system.f_flag & ST_NOEXEC)
        return no("%s: no program may run there (noexec)", folder);
    sprintf(tree, "%s/" NAME, folder);
    if (lstat(tree, &found)) {
        int opened = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (opened < 0) return no("%s: %s", folder, strerror(errno));
        int fine = fill_in(opened, folder);
        close(opened);
        if (!fine) return 0;
        if (lstat(tree, &found)) return no("%s: %s", tree, strerror(errno));
    }
    return own(&found) ? 1 : no("%s " NOT_OWN, tree);
}

/* The places, best first: the user's cache, then the folders for what is temporary. */
static int find_place(char *tree) {
    char place[PATH_MAX + 64];
    const char *stated = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *temporary = getenv("TMPDIR");
    const char *roots[] = {temporary && temporary[0] == '/' ? temporary : "/tmp", "/tmp", "/var/tmp"};
    if (stated && stated[0] == '/') {
        snprintf(place, sizeof place, "%s/atlctl", stated);
        if (prepare(place, tree)) return 1;
    }
    struct stat found;
    if (home && home[0] == '/' && !stat(home, &found)) { /* a home that is missing is not made */
        snprintf(place, sizeof place, "%s/.cache/atlctl", home);
        if (prepare(place, tree)) return 1;
    }
    for (int index = 0; index < 3; index++) {
        if (index == 1 && !strcmp(roots[0], roots[1])) continue;
        snprintf(place, sizeof place, "%s/atlctl-%ld", roots[index], (long)geteuid());
        if (prepare(place, tree)) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    static char tree[PATH_MAX + 64], python[PATH_MAX + 128];
    mode_t mask = umask(077);
    if (!find_place(tree)) {
        fputs("error: there is no folder to unpack into\n", stderr);
        for (int index = 0; index < reason_count && index < PLACES; index++) fprintf(stderr, "  %s\n", reasons[index]);
        fputs("hint: XDG_CACHE_HOME=/a/folder/of/your/own, on a file system where programs may run\n", stderr);
        return 1;
    }
    umask(mask);
    snprintf(python, sizeof python, "%s/bin/python3", tree);

    static const char *fixed[] = {START};
    enum { FIXED = sizeof fixed / sizeof *fixed };
    const char **words = calloc((size_t)argc + FIXED + 1, sizeof *words);
    if (!words) return 1;
    int count = 0;
    words[count++] = python;
    for (int index = 0; index < FIXED; index++) words[count++] = fixed[index];
    for (int index = 1; index < argc; index++) words[count++] = argv[index];
    execv(python, (char **)words);
    fprintf(stderr, "error: %s: %s\nhint: rm -r '%s', and start again\n", python, strerror(errno), tree);
    return 1;
}
