/* Asks the agent for a step's binding: sends a munge credential over TCP, and checks the answer to the last byte. */
#ifndef MOORINGS_ASK_H
#define MOORINGS_ASK_H

#include "moorings_step.h"

/* ---------------------------------------------------------------------------------------------------------- munge */

/* libmunge is on every node with auth/munge; its development package is not, so its functions are declared here. */
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

/* Returns the credential of `text`; free it after use. NULL: see `why`. */
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

/* Copies the agent's payload to `text` and returns its length; -1: see `why`. Expired and replayed ones are errors. */
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

/* Returns a connection to the first agent that accepts one; -1: none does.
 *
 * Neither `until` nor ended() limits the search for a name: with silent name servers glibc takes some 10 s for each of
 * them (resolv.conf sets retries and timeout), and only SIGKILL ends it. An address needs no search. */
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

/* Reads a line without its end into `line`; false: incomplete, late or too long. */
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

/* Sends `question` and reads the agent's line into `line`; false: see `why`. */
static bool exchange(const char *question, char *line, size_t line_size, long long until, char *why, size_t size)
{
	bool good = false;
	int fd = connect_agent(until);
	if (fd < 0) {
		(void)snprintf(why, size, "no agent answers at %.200s port %s", settings.agents, settings.port);
		return false;
	}
	/* Only now: a credential has a limited lifetime, and a search for names takes time. */
	char *credential = munge_text(question, why, size);
	long long limit = now_ms() + READ_MS;
	limit = limit < until ? limit : until;
	if (credential) {
		good = send_all(fd, credential, strlen(credential), limit) && send_all(fd, "\n", 1, limit) &&
		       read_line(fd, line, line_size, limit);
		if (!good)
			(void)snprintf(why, size, "the agent at %.200s did not answer", settings.agents);
	}
	free(credential);
	(void)close(fd);
	return good;
}

/* Returns the length of the agent's payload in `text`; -1: see `why`, and retry. */
static long ask_once(const struct job *job, char *line, char *text, long long until, char *why, size_t size)
{
	char question[512];
	(void)snprintf(question, sizeof question,
		       "moorings 1 bind\njob=%lu\nstep=%lu\nnode=%s\nrestart=%lu\nnonce=%s\ntasks=%lu\nnodes=%lu\n",
		       (unsigned long)job->id, (unsigned long)job->step, job->node, (unsigned long)job->restart, job->nonce,
		       (unsigned long)job->tasks, (unsigned long)job->nodes);
	if (!exchange(question, line, LINE_MAX_BYTES + 1, until, why, size))
		return -1;
	return unmunge_text(line, text, LINE_MAX_BYTES, why, size);
}

/* ------------------------------------------------------------------------------------------------ reading the answer */

/* Whether a job may get a variable of that name. It is set as root, and no binding needs a loader's or a shell's own. */
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

/* Whether it is an absolute path without ".", ".." and double slashes. */
static bool folder_allowed(const char *path)
{
	size_t length = strlen(path);
	return path[0] == '/' && length > 1 && length < PATH_MAX - 512 && path[length - 1] != '/' && !strstr(path, "//") &&
	       !strstr(path, "/./") && !strstr(path, "/../") && strcmp(path + length - 2, "/.") &&
	       (length < 3 || strcmp(path + length - 3, "/.."));
}

/* Decodes base64 in place; returns the decoded length, or -1 if it is not base64. */
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
		/* Keys of newer agents are ignored. */
	}
	return true;
}

/* Whether an `ok` is complete: every field in use is there. */
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

/* Judges the agent's answer to this request; `why` is its message, or ours if it has no useful one. */
static enum outcome judge(const struct job *job, char *why, size_t size)
{
	struct answer answer = {"", "", "", "", ""};
	char id[16], step[16];
	(void)snprintf(id, sizeof id, "%lu", (unsigned long)job->id);
	(void)snprintf(step, sizeof step, "%lu", (unsigned long)job->step);
	shared->gcds = shared->n_entries = shared->dir = shared->partition = shared->master = shared->port = 0;
	/* Refuse root's answer to another request, replayed on the network. */
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

/* Asks until there is an answer, a timeout, or the job ends. READY: shared holds the binding. */
static enum state fetch_binding(struct job *job)
{
	long long wait_ms = settings.wait_s * 1000;
	if (by_note && wait_ms > LOOK_IN_MS)
		wait_ms = LOOK_IN_MS;
	long long start = now_ms(), until = start + wait_ms;
	long long pause = LOOK_MS;
	char why[600] = "";
	bool told = false;
	unsigned char noise[8];
	char *line = malloc(LINE_MAX_BYTES + 1);
	enum outcome outcome = OUTCOME_RETRY;
	if (!line) {
		tell("no memory to ask for the partition");
		return STATE_REFUSED;
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
		return STATE_READY;
	if (ended()) {
		slurm_debug("moorings: the wait for the partition was ended by a signal");
		return STATE_REFUSED;
	}
	if (outcome == OUTCOME_REFUSED) {
		tell("job %lu gets no partition: %s", (unsigned long)job->id, why);
		return STATE_REFUSED;
	}
	tell("job %lu: the partition was not ready within %lld s: %s", (unsigned long)job->id, wait_ms / 1000, why);
	return STATE_LATE;
}

#endif
