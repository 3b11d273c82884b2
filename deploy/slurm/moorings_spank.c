/* SPANK plugin of Moorings: --ipus and --num-replicas, and no task of an IPU job starts before its partition is ACTIVE.
 *
 *     gcc -std=c99 -shared -fPIC -O2 -o moorings_spank.so moorings_spank.c -ldl
 *
 * plugstack.conf.d/moorings.conf, on submit hosts and nodes (readable by all: no secrets here):
 *
 *     optional /usr/lib/.../moorings_spank.so agent=HOST[,HOST2]:8091 max=256 wait=60 munge_socket=PATH agent_uid=UID
 *
 * sbatch, srun and salloc only check the words. In slurmstepd the tasks' own processes wait, in task_init_privileged,
 * and not the step before it forks them. Measured on 22.05: a step that waits in init or user_init leaves every signal
 * in its queue, so a cancelled job stays COMPLETING until the wait ends, and its program then runs all the same.
 * While the tasks wait the step counts as running: nothing timed out in 80 s, a time limit and scancel are obeyed
 * within a second, and what is said here reaches the job's stderr (in init it does not).
 *
 * The first task of a node asks the agent and writes the files; the others find its answer in shared memory.
 * All of this runs as root: nothing is executed, nothing here is inherited by a task, and the agent's answer is bounded
 * and checked to the last byte. src/moorings/slurm/host/nodes.py has the other half of the protocol.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(moorings, 1)

enum {
	REFUSED_EXIT = 121,       /* exit status of a task that must not start */
	LINE_MAX_BYTES = 1 << 20, /* the agent's line; munged takes no more either */
	ENTRIES_MAX = 4096,
	NAME_MAX_BYTES = 128,
	GCDS_MAX = 4096,
	REPLICAS_MAX = 65536,
	AGENTS_MAX = 8,
	WAIT_MAX_S = 3600,
	LOOK_MS = 50,          /* how often a wait looks for a signal */
	CONNECT_MS = 3000,
	READ_MS = 25000,       /* the agent may hold a request for 20 s */
	PAUSE_MS_MAX = 1000,   /* between two tries */
	TELL_MS = 5000,        /* a wait longer than this is told */
	FOLDER_LOCK_MS = 5000,
};

/* slurm.h has these, and much else: SLURM_EXTERN_CONT, SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP. */
#define EXTERN_STEP 0xfffffffcU /* has no tasks */
#define BATCH_STEP 0xfffffffbU
#define INTERACTIVE_STEP 0xfffffffaU

/* ------------------------------------------------------------------------------------------------------- settings */

static struct {
	char agents[1024]; /* "host,host2" */
	char port[8];
	char munge_socket[PATH_MAX]; /* empty: libmunge's own */
	long max;
	long wait_s;
	long agent_uid;
	bool bad;
} settings = {.port = "8091", .max = 256, .wait_s = 60};

static long ipus;     /* 0: --ipus was not given */
static long replicas; /* 0: --num-replicas was not given */

/* The number in `text` if it is written in decimal digits alone and lies in 1..max; else -1. */
static long parse_number(const char *text, long max)
{
	long number = 0;
	if (!text || !*text)
		return -1;
	for (const char *at = text; *at; at++) {
		if (*at < '0' || *at > '9' || number > max)
			return -1;
		number = number * 10 + (*at - '0');
	}
	return number >= 1 && number <= max ? number : -1;
}

static bool copy_text(char *to, size_t size, const char *from)
{
	int length = snprintf(to, size, "%s", from);
	return length >= 0 && (size_t)length < size;
}

/* agent=HOST[,HOST2]:PORT; the port may be missing, an IPv6 address stands in brackets. */
static bool parse_agents(const char *text)
{
	const char *colon = strrchr(text, ':');
	if (!copy_text(settings.agents, sizeof settings.agents, text))
		return false;
	if (colon && !strchr(colon, ']')) {
		if (parse_number(colon + 1, 65535) < 0 || !copy_text(settings.port, sizeof settings.port, colon + 1))
			return false;
		settings.agents[colon - text] = '\0';
	}
	return settings.agents[0] != '\0';
}

static void parse_settings(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		const char *equals = strchr(argv[i], '=');
		const char *value = equals ? equals + 1 : "";
		size_t length = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
		bool good = false;
#define IS(word) (length == strlen(word) && !strncmp(argv[i], word, length))
		if (IS("agent"))
			good = parse_agents(value);
		else if (IS("max"))
			good = (settings.max = parse_number(value, 65536)) > 0;
		else if (IS("wait"))
			good = (settings.wait_s = parse_number(value, WAIT_MAX_S)) > 0;
		else if (IS("munge_socket"))
			good = *value == '/' && copy_text(settings.munge_socket, sizeof settings.munge_socket, value);
		else if (IS("agent_uid"))
			good = !strcmp(value, "0") || (settings.agent_uid = parse_number(value, INT_MAX)) > 0;
#undef IS
		if (!good) {
			slurm_error("moorings: plugstack.conf: %.200s: allowed are agent=HOST[,HOST]:PORT, max=1..65536, "
				    "wait=1..%d (seconds), munge_socket=/PATH and agent_uid=UID", argv[i], WAIT_MAX_S);
			settings.bad = true;
		}
	}
	if (settings.max <= 0)
		settings.max = 256;
	if (settings.wait_s <= 0)
		settings.wait_s = 60;
}

/* -------------------------------------------------------------------------------------------------------- options */

static int take_ipus(int val, const char *text, int remote)
{
	long number = parse_number(text, INT_MAX);
	(void)val;
	if (number > 0 && !(number & (number - 1)) && (remote || number <= settings.max)) {
		ipus = number;
		return 0;
	}
	if (remote) /* the agent knows the job's size; that there was an option is all that counts here */
		ipus = 1;
	else
		slurm_error("--ipus=%.40s: the number of IPUs must be a power of two from 1 to %ld (1, 2, 4, 8, ...)",
			    text ? text : "", settings.max);
	return remote ? 0 : -1;
}

static int take_replicas(int val, const char *text, int remote)
{
	(void)val;
	replicas = parse_number(text, REPLICAS_MAX);
	if (replicas > 0 || remote)
		return 0;
	slurm_error("--num-replicas=%.40s: the number of model replicas of the whole job must be from 1 to %d, "
		    "a multiple of the tasks", text ? text : "", REPLICAS_MAX);
	return -1;
}

static struct spank_option option_ipus = {
	.name = "ipus",
	.arginfo = "N",
	.usage = "run on a partition of N IPUs (a power of two); --ntasks is the number of its GCDs",
	.has_arg = 1,
	.cb = take_ipus,
};

static struct spank_option option_replicas = {
	.name = "num-replicas",
	.arginfo = "R",
	.usage = "model replicas of the whole job (default: one for each task)",
	.has_arg = 1,
	.val = 1,
	.cb = take_replicas,
};

/* ---------------------------------------------------------------------------------------- what the tasks of a node share */

enum entry_kind { ENTRY_ENV, ENTRY_GENV, ENTRY_FILE };

struct entry {
	uint32_t kind;
	uint32_t gcd;
	uint32_t name;   /* offset in text */
	uint32_t value;  /* offset in text */
	uint32_t length; /* of the value, in bytes */
};

enum state { STATE_NEW, STATE_REFUSED, STATE_READY };

/* The agent's answer. Visible to the step and its tasks until they start their program, never to the program. */
struct shared {
	uint32_t state;
	uint32_t gcds;
	uint32_t n_entries;
	uint32_t dir, partition, master, port; /* offsets in text */
	char base[PATH_MAX];   /* the folder for files; empty: there are none */
	char folder[NAME_MAX]; /* this step's folder in it */
	struct entry entries[ENTRIES_MAX];
	char text[LINE_MAX_BYTES + 1]; /* text[0] is 0: offset 0 is "" */
};

static struct shared *shared;
static int shared_fd = -1;
static int parking[2] = {-1, -1}; /* a socket in which the lock of the folder lies for as long as the step lives */
static pid_t step_pid;

struct job {
	uint32_t id, step, restart, rank, tasks;
	uid_t uid;
	gid_t gid;
	char node[256];
	char nonce[17];
};

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One line for the human, without what would play with his terminal. */
static void tell(const char *format, ...)
{
	char line[1024];
	va_list arguments;
	va_start(arguments, format);
	(void)vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	for (char *at = line; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = '?';
	slurm_spank_log("moorings: %s", line);
}

static long long now_ms(void)
{
	struct timespec now;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static const int endings[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};

/* From here on what would end the task waits until it is looked for: 22.05 has it so, 24.11 lets it be ignored. */
static void hold_signals(sigset_t *before)
{
	sigset_t set;
	(void)sigemptyset(&set);
	for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
		(void)sigaddset(&set, endings[i]);
	(void)sigprocmask(SIG_BLOCK, &set, before);
}

/* Whether the job was cancelled, has come to its limit or lost its srun. */
static bool ended(void)
{
	sigset_t set;
	bool found = false;
	if (sigpending(&set) == 0)
		for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
			found = found || sigismember(&set, endings[i]) == 1;
	return found;
}

/* Whether `fd` (or nothing, if negative: a pause) is ready before `until`; never longer than a signal takes to be seen. */
static bool ready(int fd, short events, long long until)
{
	struct pollfd one = {.fd = fd, .events = events};
	for (;;) {
		long long left = until - now_ms();
		if (left <= 0 || ended())
			return false;
		int found = poll(&one, 1, left < LOOK_MS ? (int)left : LOOK_MS);
		if (found > 0)
			return true;
		if (found < 0 && errno != EINTR)
			return false;
	}
}

/* ---------------------------------------------------------------------------------------------------------- munge */

/* libmunge is on every node that uses auth/munge; its development package is not, so what is used is declared here. */
enum { MUNGE_OK = 0, MUNGE_OPTION_SOCKET = 8 };

static struct {
	void *library;
	void *(*create)(void);
	void (*destroy)(void *);
	int (*set)(void *, int, ...);
	int (*encode)(char **, void *, const void *, int);
	int (*decode)(const char *, void *, void **, int *, uid_t *, gid_t *);
	const char *(*error)(int);
} munge;

static bool find_symbol(void *to, const char *name)
{
	void *found = dlsym(munge.library, name);
	memcpy(to, &found, sizeof found); /* ISO C has no cast from an object's address to a function's */
	return found != NULL;
}

static bool load_munge(void)
{
	munge.library = dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
	return munge.library && find_symbol(&munge.create, "munge_ctx_create") &&
	       find_symbol(&munge.destroy, "munge_ctx_destroy") && find_symbol(&munge.set, "munge_ctx_set") &&
	       find_symbol(&munge.encode, "munge_encode") && find_symbol(&munge.decode, "munge_decode") &&
	       find_symbol(&munge.error, "munge_strerror");
}

static void *munge_context(void)
{
	void *context = munge.create();
	if (context && settings.munge_socket[0] &&
	    munge.set(context, MUNGE_OPTION_SOCKET, settings.munge_socket) != MUNGE_OK) {
		munge.destroy(context);
		return NULL;
	}
	return context;
}

/* The credential of `text`, to be freed; NULL with `why` filled in. */
static char *munge_text(const char *text, char *why, size_t size)
{
	char *credential = NULL;
	void *context = munge_context();
	int code = context ? munge.encode(&credential, context, text, (int)strlen(text)) : -1;
	if (code != MUNGE_OK) {
		(void)snprintf(why, size, "munge: %s", context ? munge.error(code) : "no memory");
		free(credential);
		credential = NULL;
	}
	if (context)
		munge.destroy(context);
	return credential;
}

/* The length of the agent's payload, copied to `text`; -1 with `why` filled in. Expired and replayed ones are errors. */
static long unmunge_text(const char *credential, char *text, size_t size, char *why, size_t why_size)
{
	void *payload = NULL;
	int length = 0;
	uid_t uid = (uid_t)-1;
	gid_t gid = (gid_t)-1;
	long copied = -1;
	void *context = munge_context();
	int code = context ? munge.decode(credential, context, &payload, &length, &uid, &gid) : -1;
	if (code != MUNGE_OK)
		(void)snprintf(why, why_size, "the agent's answer: %s", context ? munge.error(code) : "no memory");
	else if (uid != 0 && uid != (uid_t)settings.agent_uid)
		(void)snprintf(why, why_size, "what answers for the agent runs as uid %lu, not as root", (unsigned long)uid);
	else if (length <= 0 || (size_t)length >= size || !payload || memchr(payload, '\0', (size_t)length))
		(void)snprintf(why, why_size, "the agent's answer cannot be read");
	else {
		memcpy(text, payload, (size_t)length);
		text[length] = '\0';
		copied = length;
	}
	free(payload);
	if (context)
		munge.destroy(context);
	return copied;
}

/* -------------------------------------------------------------------------------------------------- asking the agent */

static int connect_within(const struct addrinfo *to, long long until)
{
	int error = 0;
	socklen_t size = sizeof error;
	int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to->ai_protocol);
	if (fd < 0)
		return -1;
	if (connect(fd, to->ai_addr, to->ai_addrlen) == 0)
		return fd;
	if (errno == EINPROGRESS && ready(fd, POLLOUT, until) &&
	    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
		return fd;
	(void)close(fd);
	return -1;
}

/* A connection to the first agent that takes one; -1. */
static int connect_agent(long long until)
{
	char list[sizeof settings.agents];
	char *rest = list;
	int fd = -1;
	memcpy(list, settings.agents, sizeof list);
	for (int i = 0; fd < 0 && rest && i < AGENTS_MAX && !ended(); i++) {
		struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
		struct addrinfo *found = NULL;
		char *host = strsep(&rest, ",");
		size_t length = strlen(host);
		if (length > 2 && host[0] == '[' && host[length - 1] == ']') {
			host[length - 1] = '\0';
			host++;
		}
		if (getaddrinfo(host, settings.port, &hints, &found) != 0)
			continue;
		for (struct addrinfo *at = found; fd < 0 && at; at = at->ai_next) {
			long long limit = now_ms() + CONNECT_MS;
			fd = connect_within(at, limit < until ? limit : until);
		}
		freeaddrinfo(found);
	}
	return fd;
}

static bool send_all(int fd, const char *data, size_t length, long long until)
{
	while (length > 0) {
		ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
		if (sent > 0) {
			data += sent;
			length -= (size_t)sent;
		} else if (sent < 0 && errno != EINTR && errno != EAGAIN) {
			return false;
		} else if (!ready(fd, POLLOUT, until)) {
			return false;
		}
	}
	return true;
}

/* A line without its end, in `line`; false: it did not come whole, in time, or fit. */
static bool read_line(int fd, char *line, size_t size, long long until)
{
	size_t length = 0;
	while (length < size - 1) {
		ssize_t got = recv(fd, line + length, size - 1 - length, 0);
		if (got > 0) {
			char *end = memchr(line + length, '\n', (size_t)got);
			length += (size_t)got;
			if (end) {
				*end = '\0';
				return true;
			}
		} else if (got == 0 || (errno != EINTR && errno != EAGAIN) || !ready(fd, POLLIN, until)) {
			return false;
		}
	}
	return false;
}

/* The length of the agent's payload in `text`; -1 with `why` filled in: try again. */
static long ask_once(const struct job *job, char *line, char *text, long long until, char *why, size_t size)
{
	char question[512];
	long length = -1;
	(void)snprintf(question, sizeof question,
		       "moorings 1 bind\njob=%lu\nstep=%lu\nnode=%s\nrestart=%lu\nnonce=%s\n", (unsigned long)job->id,
		       (unsigned long)job->step, job->node, (unsigned long)job->restart, job->nonce);
	int fd = connect_agent(until);
	if (fd < 0) {
		(void)snprintf(why, size, "no agent answers at %.200s port %s", settings.agents, settings.port);
		return -1;
	}
	/* Only now: a credential has a time to live, and names may take theirs to be found. */
	char *credential = munge_text(question, why, size);
	long long limit = now_ms() + READ_MS;
	limit = limit < until ? limit : until;
	if (credential) {
		if (!send_all(fd, credential, strlen(credential), limit) || !send_all(fd, "\n", 1, limit) ||
		    !read_line(fd, line, LINE_MAX_BYTES + 1, limit))
			(void)snprintf(why, size, "the agent at %.200s did not answer", settings.agents);
		else
			length = unmunge_text(line, text, LINE_MAX_BYTES, why, size);
	}
	free(credential);
	(void)close(fd);
	return length;
}

/* ------------------------------------------------------------------------------------------------ reading the answer */

static bool only(const char *text, const char *allowed, size_t max)
{
	size_t length = strlen(text);
	return length > 0 && length <= max && strspn(text, allowed) == length;
}

#define DIGITS "0123456789"
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

/* A name of a variable that a job may be given. Root asks for it, but a loader's or a shell's own it need never be. */
static bool variable_allowed(const char *name)
{
	static const char *const families[] = {"LD_", "SLURM_", "SLURMD_", "SPANK_", "_SLURM_", "BASH_", "GCONV_",
					       "GLIBC_", "MALLOC_", "PYTHON", "PERL", "RUBY", "NODE_", "JAVA_", NULL};
	static const char *const names[] = {"PATH", "IFS", "ENV", "HOME", "SHELL", "SHELLOPTS", "USER", "LOGNAME", "CDPATH",
					    "GLOBIGNORE", "PROMPT_COMMAND", "PS1", "PS4", "TMPDIR", "LOCPATH", "NLSPATH",
					    "LOCALDOMAIN", "HOSTALIASES", "RES_OPTIONS", "EDITOR", "PAGER", NULL};
	if (!only(name, LETTERS DIGITS "_", NAME_MAX_BYTES) || strchr(DIGITS, name[0]))
		return false;
	for (int i = 0; families[i]; i++)
		if (!strncmp(name, families[i], strlen(families[i])))
			return false;
	for (int i = 0; names[i]; i++)
		if (!strcmp(name, names[i]))
			return false;
	return true;
}

static bool file_allowed(const char *name)
{
	return only(name, LETTERS DIGITS "._-", NAME_MAX_BYTES) && name[0] != '.';
}

/* An absolute path without "." and ".." and double slashes. */
static bool folder_allowed(const char *path)
{
	size_t length = strlen(path);
	return path[0] == '/' && length > 1 && length < PATH_MAX - 512 && path[length - 1] != '/' && !strstr(path, "//") &&
	       !strstr(path, "/./") && !strstr(path, "/../") && strcmp(path + length - 2, "/.") &&
	       (length < 3 || strcmp(path + length - 3, "/.."));
}

/* Decodes base64 in place; the length of what comes out, -1: it is none. */
static long decode_base64(char *text)
{
	static const char alphabet[] = LETTERS DIGITS "+/";
	size_t length = strlen(text);
	long out = 0;
	if (length % 4)
		return -1;
	size_t padding = length && text[length - 1] == '=' ? (text[length - 2] == '=' ? 2 : 1) : 0;
	for (size_t i = 0; i < length; i += 4) {
		uint32_t bits = 0;
		for (size_t j = 0; j < 4; j++) {
			const char *at = i + j < length - padding ? strchr(alphabet, text[i + j]) : alphabet;
			if (!at)
				return -1;
			bits = bits << 6 | (uint32_t)(at - alphabet);
		}
		for (int j = 2; j >= 0; j--)
			text[out++] = (char)(bits >> 8 * j & 0xff);
	}
	return out - (long)padding;
}

/* GCD:rest -> the number, and `rest`. */
static bool parse_gcd(char **at, uint32_t *gcd)
{
	char *colon = strchr(*at, ':');
	if (!colon)
		return false;
	*colon = '\0';
	long number = !strcmp(*at, "0") ? 0 : parse_number(*at, GCDS_MAX - 1);
	*at = colon + 1;
	*gcd = (uint32_t)number;
	return number >= 0;
}

/* env=NAME=VALUE, genv=GCD:NAME=VALUE, file=GCD:NAME:BASE64 */
static bool parse_entry(enum entry_kind kind, char *value)
{
	char separator = kind == ENTRY_FILE ? ':' : '=';
	struct entry *entry = &shared->entries[shared->n_entries];
	if (shared->n_entries >= ENTRIES_MAX)
		return false;
	entry->kind = kind;
	entry->gcd = 0;
	if (kind != ENTRY_ENV && !parse_gcd(&value, &entry->gcd))
		return false;
	char *end = strchr(value, separator);
	if (!end)
		return false;
	*end = '\0';
	entry->name = (uint32_t)(value - shared->text);
	entry->value = (uint32_t)(end + 1 - shared->text);
	long length = kind == ENTRY_FILE ? decode_base64(end + 1) : (long)strlen(end + 1);
	entry->length = (uint32_t)length;
	shared->n_entries++;
	return length >= 0 && (kind == ENTRY_FILE ? file_allowed(value) : variable_allowed(value));
}

struct answer {
	const char *status, *message, *job, *step, *nonce;
};

/* Splits the payload at shared->text + 1 into its entries. */
static bool parse_answer(struct answer *answer)
{
	char *rest = shared->text + 1;
	for (char *key = strsep(&rest, "\n"); key; key = strsep(&rest, "\n")) {
		char *value = strchr(key, '=');
		if (!*key)
			continue;
		if (!value)
			return false;
		*value++ = '\0';
		uint32_t offset = (uint32_t)(value - shared->text);
		if (!strcmp(key, "env") || !strcmp(key, "genv") || !strcmp(key, "file")) {
			if (!parse_entry(key[0] == 'e' ? ENTRY_ENV : key[0] == 'g' ? ENTRY_GENV : ENTRY_FILE, value))
				return false;
		} else if (!strcmp(key, "gcds")) {
			long number = parse_number(value, GCDS_MAX);
			if (number < 0)
				return false;
			shared->gcds = (uint32_t)number;
		} else if (!strcmp(key, "status"))
			answer->status = value;
		else if (!strcmp(key, "message"))
			answer->message = value;
		else if (!strcmp(key, "job"))
			answer->job = value;
		else if (!strcmp(key, "step"))
			answer->step = value;
		else if (!strcmp(key, "nonce"))
			answer->nonce = value;
		else if (!strcmp(key, "dir"))
			shared->dir = offset;
		else if (!strcmp(key, "partition"))
			shared->partition = offset;
		else if (!strcmp(key, "master"))
			shared->master = offset;
		else if (!strcmp(key, "port"))
			shared->port = offset;
		/* A key of a newer agent says nothing to us. */
	}
	return true;
}

/* Whether an `ok` can be carried out: all that will be used of it is there. */
static bool answer_whole(void)
{
	const char *text = shared->text;
	if (!shared->gcds || !only(text + shared->partition, LETTERS DIGITS "._-", NAME_MAX_BYTES) ||
	    !only(text + shared->master, LETTERS DIGITS "._:-", 255) || parse_number(text + shared->port, 65535) < 0 ||
	    (text[shared->dir] && !folder_allowed(text + shared->dir)))
		return false;
	for (uint32_t i = 0; i < shared->n_entries; i++)
		if (shared->entries[i].gcd >= shared->gcds || (shared->entries[i].kind == ENTRY_FILE && !text[shared->dir]))
			return false;
	return true;
}

enum outcome { OUTCOME_OK, OUTCOME_RETRY, OUTCOME_REFUSED };

/* What the agent says to this question; `why` in its words, or in ours where it says nothing of use. */
static enum outcome judge(const struct job *job, char *why, size_t size)
{
	struct answer answer = {"", "", "", "", ""};
	char id[16], step[16];
	(void)snprintf(id, sizeof id, "%lu", (unsigned long)job->id);
	(void)snprintf(step, sizeof step, "%lu", (unsigned long)job->step);
	shared->gcds = shared->n_entries = shared->dir = shared->partition = shared->master = shared->port = 0;
	/* An answer of root's to another question, sent on by somebody on the wire, is none to this one. */
	if (!parse_answer(&answer) || strcmp(answer.job, id) || strcmp(answer.step, step) || strcmp(answer.nonce, job->nonce)) {
		(void)snprintf(why, size, "the agent's answer cannot be used");
		return OUTCOME_RETRY;
	}
	if (!strcmp(answer.status, "ok") && answer_whole())
		return OUTCOME_OK;
	if (!strcmp(answer.status, "ok")) {
		(void)snprintf(why, size, "the agent's answer asks for what is not allowed");
		return OUTCOME_REFUSED;
	}
	(void)snprintf(why, size, "%.500s", answer.message);
	return strcmp(answer.status, "refused") ? OUTCOME_RETRY : OUTCOME_REFUSED;
}

/* Asks until there is an answer, the time is over or the job ends. True: shared holds the binding. */
static bool fetch_binding(struct job *job)
{
	long long start = now_ms(), until = start + settings.wait_s * 1000;
	long long pause = LOOK_MS;
	char why[600] = "";
	bool told = false;
	unsigned char noise[8];
	char *line = malloc(LINE_MAX_BYTES + 1);
	enum outcome outcome = OUTCOME_RETRY;
	if (!line) {
		tell("no memory to ask for the partition");
		return false;
	}
	while (outcome == OUTCOME_RETRY && now_ms() < until && !ended()) {
		if (getrandom(noise, sizeof noise, 0) != (ssize_t)sizeof noise)
			break;
		for (size_t i = 0; i < sizeof noise; i++)
			(void)snprintf(job->nonce + 2 * i, 3, "%02x", noise[i]);
		long length = ask_once(job, line, shared->text + 1, until, why, sizeof why);
		if (length >= 0)
			outcome = judge(job, why, sizeof why);
		if (outcome != OUTCOME_RETRY)
			break;
		if (!told && now_ms() - start > TELL_MS) {
			tell("waiting for the partition of job %lu: %s", (unsigned long)job->id, why);
			told = true;
		}
		long long next = now_ms() + pause;
		(void)ready(-1, 0, next < until ? next : until);
		pause = pause * 2 < PAUSE_MS_MAX ? pause * 2 : PAUSE_MS_MAX;
	}
	free(line);
	if (outcome == OUTCOME_OK)
		return true;
	if (ended())
		slurm_debug("moorings: the wait for the partition was ended by a signal");
	else if (outcome == OUTCOME_REFUSED)
		tell("job %lu gets no partition: %s", (unsigned long)job->id, why);
	else
		tell("job %lu: the partition was not ready within %ld s: %s", (unsigned long)job->id, settings.wait_s, why);
	return false;
}

/* --------------------------------------------------------------------------------------------------- the files of a step */

/* The folder for files, which only root can write; made if only its last part is missing. -1 with errno. */
static int open_base(const char *path)
{
	struct stat status;
	if (mkdir(path, 0711) == 0) {
		if (chmod(path, 0711) != 0) /* whatever the umask is */
			return -1;
	} else if (errno != EEXIST) {
		return -1;
	}
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &status) != 0 || status.st_uid != 0 || status.st_mode & (S_IWGRP | S_IWOTH))) {
		(void)close(fd);
		errno = EPERM;
		return -1;
	}
	return fd;
}

/* Removes a step's folder, which holds nothing but plain files. */
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

/* <job>.<step>.<node>: several nodes may share the folder, and each sweeps its own alone. */
static bool folder_of_node(const char *name, const char *node)
{
	size_t job = strspn(name, DIGITS);
	if (!job || name[job] != '.')
		return false;
	size_t step = strspn(name + job + 1, DIGITS);
	return step && name[job + 1 + step] == '.' && !strcmp(name + job + 1 + step + 1, node);
}

/* Removes what steps of this node left behind when they were killed: folders whose lock nobody holds any more. */
static void sweep(int base, const char *node)
{
	int again = openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* closedir() takes its descriptor with it */
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

/* Leaves `fd` in the step's own socket: the lock that it holds ends with slurmstepd, whichever way that ends. */
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

/* A lock on the whole folder while one is made or swept; -1. */
static int lock_base(int base)
{
	long long until = now_ms() + FOLDER_LOCK_MS;
	int fd = openat(base, ".lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
		long long next = now_ms() + 5;
		if (errno != EWOULDBLOCK || next >= until || ended()) {
			(void)close(fd);
			return -1;
		}
		(void)ready(-1, 0, next);
	}
	return fd;
}

static bool write_files(const struct job *job)
{
	bool good = false;
	int folder = -1, lock = -1;
	if (!copy_text(shared->base, sizeof shared->base, shared->text + shared->dir))
		return false;
	int base = open_base(shared->base);
	if (base < 0) {
		tell("job %lu: %s cannot be used for files: %s (it must be root's folder, mode 0711)", (unsigned long)job->id,
		     shared->base, strerror(errno));
		return false;
	}
	char name[NAME_MAX];
	int length = snprintf(name, sizeof name, "%lu.%lu.%s", (unsigned long)job->id, (unsigned long)job->step, job->node);
	if (length > 0 && (size_t)length < sizeof name && (lock = lock_base(base)) >= 0) {
		sweep(base, job->node);
		if (mkdirat(base, name, 0711) == 0) {
			memcpy(shared->folder, name, sizeof name); /* from here on it is ours, to be removed */
			folder = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		}
	}
	if (folder >= 0) {
		good = fchmod(folder, 0711) == 0 && flock(folder, LOCK_EX | LOCK_NB) == 0 && park(folder);
		for (uint32_t i = 0; good && i < shared->n_entries; i++)
			if (shared->entries[i].kind == ENTRY_FILE)
				good = write_file(folder, &shared->entries[i], job);
	}
	if (!good)
		tell("job %lu: its files cannot be written below %s: %s", (unsigned long)job->id, shared->base, strerror(errno));
	if (folder >= 0)
		(void)close(folder);
	if (lock >= 0)
		(void)close(lock);
	(void)close(base);
	return good;
}

/* -------------------------------------------------------------------------------------------------- a task's variables */

static bool set(spank_t sp, const char *name, const char *value)
{
	spank_err_t code = spank_setenv(sp, name, value, 1);
	if (code != ESPANK_SUCCESS)
		tell("%s cannot be set: %s", name, spank_strerror(code));
	return code == ESPANK_SUCCESS;
}

static bool set_number(spank_t sp, const char *name, unsigned long value)
{
	char text[24];
	(void)snprintf(text, sizeof text, "%lu", value);
	return set(sp, name, text);
}

static bool set_variables(spank_t sp, const struct job *job)
{
	/* One form alone: a program that finds both the API's variables and a file fails. A job's batch script hands its
	 * own on to its steps, and a profile may set them too. */
	static const char *const stale[] = {"IPUOF_CONFIG_PATH", "IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PORT",
					    "IPUOF_VIPU_API_PARTITION_ID", "IPUOF_VIPU_API_GCD_ID", "IPUOF_VIPU_API_TIMEOUT",
					    NULL};
	uint32_t gcd = (uint32_t)((uint64_t)job->rank * shared->gcds / job->tasks);
	const char *text = shared->text;
	char path[2 * PATH_MAX];
	int local = 0;
	bool good = true;
	for (int i = 0; stale[i]; i++)
		(void)spank_unsetenv(sp, stale[i]);
	for (uint32_t i = 0; good && i < shared->n_entries; i++) {
		const struct entry *entry = &shared->entries[i];
		if (entry->kind == ENTRY_ENV || (entry->kind == ENTRY_GENV && entry->gcd == gcd))
			good = set(sp, text + entry->name, text + entry->value);
		if (entry->kind == ENTRY_FILE && entry->gcd == gcd) {
			int length = snprintf(path, sizeof path, "%s/%s/%s", shared->base, shared->folder, text + entry->name);
			good = length > 0 && (size_t)length < sizeof path && set(sp, "IPUOF_CONFIG_PATH", path);
		}
	}
	good = good && set_number(sp, "RANK", job->rank) && set_number(sp, "WORLD_SIZE", job->tasks) &&
	       set(sp, "MASTER_ADDR", text + shared->master) && set(sp, "MASTER_PORT", text + shared->port);
	if (good && spank_get_item(sp, S_TASK_ID, &local) == ESPANK_SUCCESS && local >= 0)
		good = set_number(sp, "LOCAL_RANK", (unsigned long)local);
	return good;
}

/* ------------------------------------------------------------------------------------------------------- Slurm's calls */

static const char *const inherited[] = {
	"_SLURM_SPANK_OPTION_moorings_ipus", "_SLURM_SPANK_OPTION_moorings_num_replicas",
	"SLURM_SPANK__SLURM_SPANK_OPTION_moorings_ipus", "SLURM_SPANK__SLURM_SPANK_OPTION_moorings_num_replicas"};

int slurm_spank_init(spank_t sp, int argc, char **argv)
{
	spank_context_t context = spank_context();
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
		return 0;
	parse_settings(argc, argv);
	/* Slurm hands a job's options on in its environment: right for its steps, but an sbatch in the script of an IPU
	 * job would take IPUs for every job it submits. */
	bool new_job = context == S_CTX_ALLOCATOR || (context == S_CTX_LOCAL && !getenv("SLURM_JOB_ID"));
	for (size_t i = 0; new_job && i < sizeof inherited / sizeof *inherited; i++)
		(void)unsetenv(inherited[i]);
	if (spank_option_register(sp, &option_ipus) != ESPANK_SUCCESS ||
	    spank_option_register(sp, &option_replicas) != ESPANK_SUCCESS) {
		slurm_error("moorings: --ipus and --num-replicas cannot be added");
		return -1;
	}
	return 0;
}

int slurm_spank_init_post_opt(spank_t sp, int argc, char **argv)
{
	uint32_t step = 0;
	(void)argc;
	(void)argv;
	if (!ipus || spank_remote(sp) != 1)
		return 0;
	if (spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS && step == EXTERN_STEP)
		return 0;
	step_pid = getpid();
	shared_fd = memfd_create("moorings", MFD_CLOEXEC);
	if (shared_fd >= 0 && ftruncate(shared_fd, sizeof *shared) == 0) {
		void *memory = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
		shared = memory == MAP_FAILED ? NULL : memory;
	}
	/* A failure is told in the tasks, which must not start then: from here nothing reaches the user. */
	if (!shared || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, parking) != 0 || !load_munge())
		slurm_error("moorings: no memory, no socket or no libmunge.so.2: the tasks of this step will not start");
	return 0;
}

/* The first task to come asks for all; the others wait for it at the lock, which a task that is killed lets go. */
static bool binding_here(struct job *job)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	while (fcntl(shared_fd, F_SETLKW, &lock) != 0)
		if (errno != EINTR) {
			tell("the tasks of this node cannot wait for each other: %s", strerror(errno));
			return false;
		}
	if (shared->state == STATE_NEW && !ended()) {
		shared->state = STATE_REFUSED; /* also if this task is killed on the way */
		if (fetch_binding(job) && (!shared->text[shared->dir] || write_files(job)) && !ended())
			shared->state = STATE_READY;
	}
	bool here = shared->state == STATE_READY;
	lock.l_type = F_UNLCK;
	(void)fcntl(shared_fd, F_SETLK, &lock);
	return here && !ended();
}

static bool describe_job(spank_t sp, struct job *job)
{
	char text[16] = "";
	const char *node = getenv("SLURMD_NODENAME"); /* slurmstepd's own, from slurmd: not the job's */
	if (spank_get_item(sp, S_JOB_ID, &job->id) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_STEPID, &job->step) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_UID, &job->uid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_GID, &job->gid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_TASK_GLOBAL_ID, &job->rank) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &job->tasks) != ESPANK_SUCCESS)
		return false;
	if (job->step == BATCH_STEP || job->step == INTERACTIVE_STEP) {
		job->rank = 0; /* one process, whatever the job asked for: Slurm says 0 tasks here, or the job's */
		job->tasks = 1;
	}
	if (job->rank >= job->tasks)
		return false;
	if (spank_get_item(sp, S_SLURM_RESTART_COUNT, &job->restart) != ESPANK_SUCCESS)
		job->restart = 0;
	/* Measured on 22.05: a batch script is said to be at its first run at every run, and a step has it in its
	 * environment, where the user could change it. The agent goes by Slurm's own record. */
	if (!job->restart && spank_getenv(sp, "SLURM_RESTART_COUNT", text, sizeof text) == ESPANK_SUCCESS) {
		long number = parse_number(text, INT_MAX);
		job->restart = number > 0 ? (uint32_t)number : 0;
	}
	if (node ? !copy_text(job->node, sizeof job->node, node) : gethostname(job->node, sizeof job->node - 1) != 0)
		return false;
	return only(job->node, LETTERS DIGITS "._-", sizeof job->node - 1);
}

int slurm_spank_task_init_privileged(spank_t sp, int argc, char **argv)
{
	struct job job = {0};
	sigset_t before;
	(void)argc;
	(void)argv;
	if (!ipus)
		return 0;
	hold_signals(&before);
	/* proctrack/linuxproc signals no process that is called slurmstepd; the program's own name comes with it. */
	(void)prctl(PR_SET_NAME, "moorings-wait");
	if (settings.bad || !settings.agents[0])
		tell("the plugin's settings in plugstack.conf are wrong: agent=HOST:PORT is needed; the node's log says more");
	else if (!shared || parking[0] < 0 || !munge.error)
		tell("this node cannot ask for a partition: no memory, no socket or no libmunge.so.2");
	else if (!describe_job(sp, &job))
		tell("Slurm does not say which job, task and node this is");
	else if (binding_here(&job) && set_variables(sp, &job)) {
		(void)sigprocmask(SIG_SETMASK, &before, NULL);
		return 0;
	}
	_exit(REFUSED_EXIT); /* an error of a plugin that is `optional` would be passed over */
}

int slurm_spank_exit(spank_t sp, int argc, char **argv)
{
	(void)sp;
	(void)argc;
	(void)argv;
	if (!shared || getpid() != step_pid || !shared->folder[0])
		return 0;
	int base = open_base(shared->base);
	if (base >= 0) {
		remove_folder(base, shared->folder);
		(void)close(base);
	}
	return 0;
}
