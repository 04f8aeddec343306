/* Loaded into a JVM with LD_PRELOAD: rename(2) to a path that ends with $HELD_PATH waits while the file
   $HELD_WHILE exists, as in a machine that stands still between a look and the rename after it.
   "$HELD_WHILE.reached" says that it waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*rename_function)(const char *, const char *);

static int ends_with(const char *text, const char *end) {
    size_t long_by = strlen(text), wanted = strlen(end);
    return long_by >= wanted && strcmp(text + long_by - wanted, end) == 0;
}

int rename(const char *from, const char *to) {
    const char *path = getenv("HELD_PATH"), *flag = getenv("HELD_WHILE");
    if (path && flag && ends_with(to, path) && access(flag, F_OK) == 0) {
        char reached[4096];
        snprintf(reached, sizeof reached, "%s.reached", flag);
        FILE *mark = fopen(reached, "w");
        if (mark) fclose(mark);
        while (access(flag, F_OK) == 0) usleep(20000);
    }
    return ((rename_function)dlsym(RTLD_NEXT, "rename"))(from, to);
}
