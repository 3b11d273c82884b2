/* Tells the agent that a node's slurmd could load this plugin: else the agent drains the node.
 *
 * A thread of slurmd does it, and ends once the agent has answered. A process of its own was refused: slurmd reaps no
 * child that it does not know, systemd's KillMode=process would leave it behind, and of a fork of a program with threads
 * neither malloc nor getaddrinfo may be used.
 */
#ifndef MOORINGS_HELLO_H
#define MOORINGS_HELLO_H

#include <pthread.h>

#include "moorings_ask.h"

enum {
	HELLO_MS = 10000,          /* one try, but for the search for a name */
	HELLO_PAUSE_MS = 250,      /* after the first try, and twice that after each more, to HELLO_PAUSE_MS_MAX */
	HELLO_PAUSE_MS_MAX = 10000, /* src/moorings/slurm/host/plugged.py goes by it */
};

struct hello {
	char node[256];
	char nonce[17];
	long started; /* epoch seconds, by this node's clock, as slurmd's own SlurmdStartTime is */
};

/* The word behind -N on slurmd's command line, -DvN NODE and -NNODE too; false: there is none. */
static bool name_given(char *node, size_t size)
{
	static char line[8192];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd >= 0 ? read(fd, line, sizeof line - 1) : -1;
	if (fd >= 0)
		(void)close(fd);
	if (length <= 0)
		return false;
	line[length] = '\0';
	for (char *word = line; word < line + length; word += strlen(word) + 1) {
		if (word[0] != '-' || word[1] == '-')
			continue;
		char *flag = word + 1 + strspn(word + 1, "bcCDGMsvVZ"); /* those of slurmd that take no word */
		if (*flag == 'N')
			return copy_text(node, size, flag[1] ? flag + 1 : flag + 2);
	}
	return false;
}

/* The name of slurmd's node, or where it was not told on its command line, of its machine: the agent knows both. */
static bool name_own_node(char *node, size_t size)
{
	if (!name_given(node, size)) {
		if (gethostname(node, size - 1) != 0)
			return false;
		node[strcspn(node, ".")] = '\0'; /* as slurmd cuts it */
	}
	return only(node, LETTERS DIGITS "._-", size - 1);
}

/* Whether the agent has noted it; `why` is filled in if not. */
static bool say_hello(const struct hello *hello, char *why, size_t size)
{
	char question[512], wanted[600], line[4096], text[1024];
	long length = -1;
	(void)snprintf(question, sizeof question, "moorings 1 hello\nnode=%s\nstarted=%ld\nnonce=%s\n", hello->node,
		       hello->started, hello->nonce);
	(void)snprintf(wanted, sizeof wanted, "node=%s\nnonce=%s\nstatus=ok\n", hello->node, hello->nonce);
	if (exchange(question, line, sizeof line, now_ms() + HELLO_MS, why, size))
		length = unmunge_text(line, text, sizeof text, why, size);
	if (length >= 0 && strcmp(text, wanted)) {
		(void)snprintf(why, size, "the agent does not know of a node %.100s yet", hello->node);
		length = -1;
	}
	return length >= 0;
}

static void *keep_saying_hello(void *unused)
{
	static struct hello hello;
	char why[600] = "";
	unsigned char noise[8];
	long long pause = HELLO_PAUSE_MS;
	bool told = false;
	(void)unused;
	(void)prctl(PR_SET_NAME, "moorings-hello");
	hello.started = (long)time(NULL);
	while (name_own_node(hello.node, sizeof hello.node) && getrandom(noise, sizeof noise, 0) == (ssize_t)sizeof noise) {
		for (size_t i = 0; i < sizeof noise; i++)
			(void)snprintf(hello.nonce + 2 * i, 3, "%02x", noise[i]);
		if (say_hello(&hello, why, sizeof why)) {
			slurm_info("moorings: the agent knows that this node has the plugin");
			return NULL;
		}
		if (!told)
			slurm_info("moorings: the agent cannot yet be told that this node has the plugin: %s", why);
		told = true;
		(void)poll(NULL, 0, (int)pause);
		pause = pause * 2 < HELLO_PAUSE_MS_MAX ? pause * 2 : HELLO_PAUSE_MS_MAX;
	}
	slurm_error("moorings: the agent is not told that this node has the plugin: the node's name is not to be had");
	return NULL;
}

/* Starts that thread: it gets none of slurmd's signals, and its code stays even where slurmd unloads its plugins. */
static void begin_hello(void)
{
	static char anchor;
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;
	Dl_info here;
	bool good = load_munge() && dladdr(&anchor, &here) && dlopen(here.dli_fname, RTLD_NOW | RTLD_NODELETE);
	(void)sigfillset(&all);
	if (good && pthread_attr_init(&attributes) == 0) {
		(void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		(void)pthread_sigmask(SIG_SETMASK, &all, &before);
		good = pthread_create(&thread, &attributes, keep_saying_hello, NULL) == 0;
		(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
		(void)pthread_attr_destroy(&attributes);
	}
	if (!good)
		slurm_error("moorings: no thread or no libmunge.so.2: the agent is not told that this node has the plugin");
}

#endif
