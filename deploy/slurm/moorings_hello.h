/* Reports to the agent that a node's slurmd has loaded this plugin; without a report the agent drains the node.
 *
 * A thread of slurmd sends the report, every minute while slurmd lives, so a lost message or a new agent does no harm.
 * A process of its own was refused: slurmd reaps no unknown child, systemd's KillMode=process would leave it behind, and
 * after a fork of a program with threads neither malloc nor getaddrinfo may be used.
 */
#ifndef MOORINGS_HELLO_H
#define MOORINGS_HELLO_H

#include <pthread.h>

#include "moorings_ask.h"

enum {
	HELLO_MS = 10000,           /* one try, without the search for a name */
	HELLO_PAUSE_MS = 250,       /* after the first failed try; doubled after each further one, to HELLO_PAUSE_MS_MAX */
	HELLO_PAUSE_MS_MAX = 10000,
	HELLO_AGAIN_MS = 45000,     /* after a success, plus up to HELLO_SPREAD_MS: a thousand nodes start at once */
	HELLO_SPREAD_MS = 30000,    /* src/moorings/slurm/host/plugin_nodes.py depends on the sum */
	FORK_MS = 60000,            /* for this long after it loaded its plugins slurmd may go into the background */
	FORK_PAUSE_MS = 1000,       /* meanwhile a thread that a fork may end holds no lock */
	FORK_LOOK_MS = 100,
};

struct hello {
	char node[256];
	char nonce[17];
};

static struct {
	long long loaded_ms; /* when slurmd loaded the plugin */
	const char *file;    /* the plugin; each step loads it again */
	char run[17];        /* identifies this slurmd */
	bool forks;          /* it may go into the background, or has */
	pid_t forker;        /* the process that forked last: in a child, its parent */
} greeter;

/* Returns the text after a flag on slurmd's command line, as in -DvN NODE and -NNODE; NULL: no such flag. */
static char *find_flag(char wanted)
{
	static char line[8192];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd >= 0 ? read(fd, line, sizeof line - 1) : -1;
	if (fd >= 0)
		(void)close(fd);
	if (length <= 0)
		return NULL;
	line[length] = '\0';
	for (char *word = line; word < line + length; word += strlen(word) + 1) {
		if (word[0] != '-' || word[1] == '-')
			continue;
		char *flag = word + 1;
		while (*flag && *flag != wanted && strchr("bcCDGMsvVZ", *flag)) /* slurmd's flags without argument */
			flag++;
		if (*flag == wanted)
			return flag + 1;
	}
	return NULL;
}

static bool name_given(char *node, size_t size)
{
	char *rest = find_flag('N');
	return rest && copy_text(node, size, *rest ? rest : rest + 1);
}

static bool make_noise(char text[17])
{
	unsigned char noise[8];
	bool good = getrandom(noise, sizeof noise, 0) == (ssize_t)sizeof noise;
	for (size_t i = 0; good && i < sizeof noise; i++)
		(void)snprintf(text + 2 * i, 3, "%02x", noise[i]);
	return good;
}

/* The name of slurmd's node from its command line, else of its machine: the agent knows both. */
static bool name_own_node(char *node, size_t size)
{
	if (!name_given(node, size)) {
		if (gethostname(node, size - 1) != 0)
			return false;
		node[strcspn(node, ".")] = '\0'; /* slurmd cuts it the same way */
	}
	return only(node, LETTERS DIGITS "._-", size - 1);
}

/* Whether the agent has recorded the report; sets `why` if not. */
static bool say_hello(const struct hello *hello, char *why, size_t size)
{
	char question[512], wanted[600], line[4096], text[1024];
	long length = -1;
	(void)snprintf(question, sizeof question, "moorings 1 hello\nnode=%s\nrun=%s\nage_ms=%lld\nnonce=%s\n",
		       hello->node, greeter.run, now_ms() - greeter.loaded_ms, hello->nonce);
	(void)snprintf(wanted, sizeof wanted, "node=%s\nnonce=%s\nstatus=ok\n", hello->node, hello->nonce);
	if (exchange(question, line, sizeof line, now_ms() + HELLO_MS, why, size))
		length = unmunge_text(line, text, sizeof text, why, size);
	if (length >= 0 && strcmp(text, wanted)) {
		(void)snprintf(why, size, "the agent does not know of a node %.100s yet", hello->node);
		length = -1;
	}
	return length >= 0;
}

/* Whether this process is slurmd, and not a fork of it that will soon exec another program. */
static bool in_slurmd(void)
{
	while (greeter.forker && getppid() == greeter.forker) {
		if (now_ms() - greeter.loaded_ms > FORK_MS)
			return false;
		(void)poll(NULL, 0, FORK_LOOK_MS);
	}
	return true;
}

static void *keep_saying_hello(void *unused)
{
	static struct hello hello;
	char why[600] = "";
	long long pause = HELLO_PAUSE_MS;
	bool told = false, known = false;
	(void)unused;
	(void)prctl(PR_SET_NAME, "moorings-hello");
	if (greeter.forks)
		(void)poll(NULL, 0, FORK_PAUSE_MS);
	if (!in_slurmd())
		return NULL;
	while (name_own_node(hello.node, sizeof hello.node) && make_noise(hello.nonce)) {
		bool there = access(greeter.file, R_OK) == 0;
		if (!there)
			(void)snprintf(why, sizeof why, "%.500s: %s", greeter.file, strerror(errno));
		if (there && say_hello(&hello, why, sizeof why)) {
			if (!known)
				slurm_info("moorings: the agent knows that this node has the plugin");
			known = true;
			told = false;
			pause = HELLO_PAUSE_MS;
			(void)poll(NULL, 0, HELLO_AGAIN_MS + (int)(strtoul(hello.nonce + 8, NULL, 16) % HELLO_SPREAD_MS));
			continue;
		}
		if (!told)
			slurm_info("moorings: the agent cannot be told that this node has the plugin, tried again: %s", why);
		told = true;
		known = false;
		(void)poll(NULL, 0, (int)pause);
		pause = pause * 2 < HELLO_PAUSE_MS_MAX ? pause * 2 : HELLO_PAUSE_MS_MAX;
	}
	slurm_error("moorings: the agent is not told that this node has the plugin: the node's name is not to be had");
	return NULL;
}

/* Starts the thread; it gets none of slurmd's signals. */
static bool start_thread(void)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;
	(void)sigfillset(&all);
	if (pthread_attr_init(&attributes) != 0)
		return false;
	(void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	bool good = pthread_create(&thread, &attributes, keep_saying_hello, NULL) == 0;
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)pthread_attr_destroy(&attributes);
	return good;
}

static void before_fork(void)
{
	greeter.forker = getpid();
}

static void in_child(void)
{
	if (now_ms() - greeter.loaded_ms < FORK_MS)
		(void)start_thread();
}

/* Runs once in a slurmd. Without -D, slurmd of 22.05 loads its plugins and only then forks, twice, to go into the
 * background. A fork keeps no thread, so each child starts one; it ends in a child whose parent stays. */
static void begin_hello(void)
{
	static char anchor;
	Dl_info here;
	greeter.loaded_ms = now_ms();
	greeter.forks = !find_flag('D');
	/* The code stays loaded even if slurmd unloads its plugins. */
	bool good = make_noise(greeter.run) && load_munge() && dladdr(&anchor, &here) &&
		    dlopen(here.dli_fname, RTLD_NOW | RTLD_NODELETE) && (greeter.file = strdup(here.dli_fname)) &&
		    (!greeter.forks || pthread_atfork(before_fork, NULL, in_child) == 0) && start_thread();
	if (!good)
		slurm_error("moorings: no thread or no libmunge.so.2: the agent is not told that this node has the plugin");
}

#endif
