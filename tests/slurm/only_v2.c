/* Preloaded into slurmd on a machine that has cgroup v1 hierarchies beside v2's: Slurm's cgroup/v2 refuses to start there,
 * so /proc/PID/cgroup and /proc/PID/mountinfo are read without them. All else is the kernel's own v2. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool is_list(const char *path)
{
	const char *name = strrchr(path, '/');
	return !strncmp(path, "/proc/", 6) && name && !strcmp(name, "/cgroup");
}

/* The file's lines of v2, in memory. */
static int without_v1(const char *path)
{
	static FILE *(*next)(const char *, const char *);
	if (!next)
		next = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
	FILE *from = next(path, "r");
	if (!from)
		return -1;
	int to = memfd_create("cgroup", MFD_CLOEXEC);
	char line[4096];
	while (fgets(line, sizeof line, from))
		if (!strncmp(line, "0::", 3))
			(void)!write(to, line, strlen(line));
	(void)fclose(from);
	(void)lseek(to, 0, SEEK_SET);
	return to;
}

#define OPEN(name)                                                        \
	int name(const char *path, int flags, ...)                        \
	{                                                                 \
		va_list more;                                             \
		va_start(more, flags);                                    \
		mode_t mode = va_arg(more, mode_t);                       \
		va_end(more);                                             \
		if (is_list(path))                                        \
			return without_v1(path);                          \
		int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
		return next(path, flags, mode);                           \
	}
OPEN(open)
OPEN(open64)

#define FOPEN(name)                                                       \
	FILE *name(const char *path, const char *mode)                    \
	{                                                                 \
		if (is_list(path)) {                                      \
			int fd = without_v1(path);                        \
			return fd < 0 ? NULL : fdopen(fd, mode);          \
		}                                                         \
		FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #name); \
		return next(path, mode);                                  \
	}
FOPEN(fopen)
FOPEN(fopen64)
