/* bin/python3 of the unpacked tree: starts the Python beside it under the loader and the C library beside it.
 *
 * The loader is told where libraries are on its command line and not in the environment, so that nothing which Python
 * starts inherits it. Linked statically: it runs where there is no C library, or another one. */

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

int main(int argc, char **argv) {
    static char self[PATH_MAX], loader[PATH_MAX + 16], library[PATH_MAX + 16], python[PATH_MAX + 16];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) { /* no /proc */
        const char *started = (const char *)getauxval(AT_EXECFN);
        if (!started || started[0] != '/' || strlen(started) >= sizeof self) {
            fputs("error: there is no /proc, and Python was not started by its absolute path\n", stderr);
            return 1;
        }
        strcpy(self, started);
    }
    char *slash = strrchr(self, '/');
    *slash = 0;
    char *folder = strrchr(self, '/');
    int root = (int)(folder - self);
    snprintf(loader, sizeof loader, "%.*s/lib/atlctl", root, self);
    snprintf(library, sizeof library, "%.*s/lib", root, self);
    snprintf(python, sizeof python, "%.*s/lib/python", root, self);
    *slash = '/';

    char **words = calloc((size_t)argc + 9, sizeof *words);
    if (!words) return 1;
    int count = 0;
    words[count++] = loader;
    words[count++] = "--inhibit-cache";
    words[count++] = "--library-path";
    words[count++] = library;
    words[count++] = "--argv0";
    words[count++] = self; /* by this Python finds its library, and names itself: sys.executable */
    words[count++] = python;
    words[count++] = "-I"; /* whoever starts it: PYTHONHOME and PYTHONPATH of a training are of another Python */
    for (int index = 1; index < argc; index++) words[count++] = argv[index];
    execv(loader, words);
    perror(loader);
    return 1;
}
