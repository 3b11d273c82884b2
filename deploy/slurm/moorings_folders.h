/* A step's files on its node: a folder for the job's files, and a note that the step has its partition.
 *
 * Both belong to root, are locked until slurmstepd ends, and are then removed. The next step removes those that a killed
 * one left behind.
 */
#ifndef MOORINGS_FOLDERS_H
#define MOORINGS_FOLDERS_H

#include "moorings_step.h"

/* Opens a folder that only root can write; with `make`, creates its last part if missing. -1 with errno. */
static int open_base(const char *path, bool make)
{
	struct stat status;
	bool made = make && mkdir(path, 0711) == 0;
	if (make && !made && errno != EEXIST)
		return -1;
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &status) != 0 || status.st_uid != 0 || status.st_mode & (S_IWGRP | S_IWOTH))) {
		(void)close(fd);
		errno = EPERM;
		return -1;
	}
	/* Whatever the umask is; on the open folder, because the path may be another folder or a link by now. */
	if (fd >= 0 && made && fchmod(fd, 0711) != 0) {
		int error = errno;
		(void)close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

/* Removes a step's folder, which only holds regular files. */
static void remove_folder(int base, const char *name)
{
	int fd = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	if (!list) {
		if (fd >= 0)
			(void)close(fd);
		return;
	}
	for (struct dirent *one = readdir(list); one; one = readdir(list))
		if (strcmp(one->d_name, ".") && strcmp(one->d_name, ".."))
			(void)unlinkat(fd, one->d_name, 0);
	(void)closedir(list);
	if (unlinkat(base, name, AT_REMOVEDIR) != 0)
		slurm_error("moorings: %s cannot be removed: %s", name, strerror(errno));
}

/* Whether `name` is <job>.<step>.<node>: several nodes may share the folder, and each only sweeps its own. */
static bool folder_of_node(const char *name, const char *node)
{
	size_t job = strspn(name, DIGITS);
	if (!job || name[job] != '.')
		return false;
	size_t step = strspn(name + job + 1, DIGITS);
	return step && name[job + 1 + step] == '.' && !strcmp(name + job + 1 + step + 1, node);
}

/* Removes folders of killed steps of this node: those with a free lock. */
static void sweep(int base, const char *node)
{
	int again = openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* closedir() also closes the descriptor */
	DIR *list = again < 0 ? NULL : fdopendir(again);
	if (!list) {
		if (again >= 0)
			(void)close(again);
		return;
	}
	for (struct dirent *one = readdir(list); one; one = readdir(list)) {
		if (!folder_of_node(one->d_name, node))
			continue;
		int fd = openat(base, one->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
			remove_folder(base, one->d_name);
		if (fd >= 0)
			(void)close(fd);
	}
	(void)closedir(list);
}

static bool write_file(int folder, const struct entry *entry, const struct job *job)
{
	const char *data = shared->text + entry->value;
	size_t left = entry->length;
	int fd = openat(folder, shared->text + entry->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
	if (fd < 0)
		return false;
	while (left > 0) {
		ssize_t written = write(fd, data, left);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			break;
		data += written;
		left -= (size_t)written;
	}
	bool good = left == 0 && fchmod(fd, 0400) == 0 && fchown(fd, job->uid, job->gid) == 0;
	return close(fd) == 0 && good;
}

/* Leaves `fd` in the step's own socket, so that its lock ends with slurmstepd, however that ends. */
static bool park(int fd)
{
	char byte = 0;
	struct iovec data = {.iov_base = &byte, .iov_len = 1};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	memset(&control, 0, sizeof control);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	return sendmsg(parking[0], &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/* Locks `fd`; returns false on failure. Others hold such a lock only for a moment. */
static bool lock_soon(int fd)
{
	long long until = now_ms() + LOCK_MS;
	while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		long long next = now_ms() + LOCK_PAUSE_MS;
		if (errno != EWOULDBLOCK || next >= until || ended())
			return false;
		(void)ready(-1, 0, next);
	}
	return true;
}

/* Makes this step's folder below `base`, locked until slurmstepd ends; sets `name`. -1 with errno. */
static int make_folder(int base, const struct job *job, char *name)
{
	int folder = -1;
	char made[NAME_MAX];
	int length = snprintf(made, sizeof made, "%lu.%lu.%s", (unsigned long)job->id, (unsigned long)job->step, job->node);
	/* No process sweeps while a folder is made: it has no lock for a moment. */
	int lock = openat(base, ".lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (lock >= 0 && length > 0 && (size_t)length < sizeof made && lock_soon(lock)) {
		sweep(base, job->node);
		if (mkdirat(base, made, 0711) == 0) {
			memcpy(name, made, sizeof made); /* from here on we must remove it */
			folder = openat(base, made, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		}
	}
	if (folder >= 0 && !(fchmod(folder, 0711) == 0 && lock_soon(folder) && park(folder))) {
		(void)close(folder);
		folder = -1;
	}
	if (lock >= 0)
		(void)close(lock);
	return folder;
}

static bool write_files(const struct job *job)
{
	if (!copy_text(shared->base, sizeof shared->base, shared->text + shared->dir))
		return false;
	int base = open_base(shared->base, true);
	if (base < 0) {
		tell("job %lu: %s cannot be used for files: %s (it must be root's folder, mode 0711)", (unsigned long)job->id,
		     shared->base, strerror(errno));
		return false;
	}
	int folder = make_folder(base, job, shared->folder);
	bool good = folder >= 0;
	for (uint32_t i = 0; good && i < shared->n_entries; i++)
		if (shared->entries[i].kind == ENTRY_FILE)
			good = write_file(folder, &shared->entries[i], job);
	if (!good)
		tell("job %lu: its files cannot be written below %s: %s", (unsigned long)job->id, shared->base, strerror(errno));
	if (folder >= 0)
		(void)close(folder);
	(void)close(base);
	return good;
}

/* Notes on this node that the step has its partition. Without the note the job runs, but later steps need --ipus. */
static void write_note(const struct job *job)
{
	int base = open_base(settings.run_dir, true);
	int folder = base < 0 ? -1 : make_folder(base, job, shared->note);
	if (folder < 0)
		slurm_error("moorings: %s cannot be used: %s", settings.run_dir, strerror(errno));
	if (folder >= 0)
		(void)close(folder);
	if (base >= 0)
		(void)close(base);
}

/* Whether a live step of that job on this node has its partition. A plain job costs one open(), and a scan of the folder
 * if IPU jobs have made one: a name for each of their live steps on this node. */
static bool find_note(uint32_t id, const char *node)
{
	bool found = false;
	int base = open_base(settings.run_dir, false);
	DIR *list = base < 0 ? NULL : fdopendir(base);
	if (!list) {
		if (base >= 0)
			(void)close(base);
		return false;
	}
	for (struct dirent *one = readdir(list); one && !found; one = readdir(list)) {
		if (!folder_of_node(one->d_name, node) || strtoul(one->d_name, NULL, 10) != id)
			continue;
		int fd = openat(dirfd(list), one->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		found = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
		if (fd >= 0)
			(void)close(fd);
	}
	(void)closedir(list);
	return found;
}

static void remove_own(const char *path, const char *name)
{
	int base = name[0] ? open_base(path, false) : -1;
	if (base < 0)
		return;
	remove_folder(base, name);
	(void)close(base);
}

#endif
