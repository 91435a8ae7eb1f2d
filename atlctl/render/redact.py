"""Hide secrets in atlctl's own diagnostics and in evidence that is shared.

By pattern, so it cannot be complete: a secret without a typical name or a known shape stays. Evidence is treated with
more care than diagnostics: a log line about a failure must stay readable. `KeyError: 'token'`, `eos_token='</s>'`,
`tokens: 512` and `password=os.environ["DB"]` in a traceback are not secrets.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

HIDDEN = "[redacted]"
#: How a secret was recognised: its name, its shape, an HTTP header, a URL that contains it, the frame of a key.
Kind = Literal["name", "shape", "header", "url", "private key"]


def _cases(*words: str) -> tuple[str, ...]:
    """`word`, `Word` and `WORD`. Not IGNORECASE, so that the sieve can look for the same texts."""
    return tuple(sorted({form for word in words for form in (word, word.title(), word.upper())}))


def _ends(words: tuple[str, ...], end: str, look: str = "<=") -> str:
    """A look back at one of `words`, perhaps a separator, and `end`, which has just been matched.

    A name is looked for by its end, which is one of a few texts: that is many times as fast as to try all beginnings.
    """
    looks = []
    for length in sorted({len(word) for word in words}):
        some = "|".join(word for word in words if len(word) == length)
        looks += [f"(?{look}(?i:{some}){end})", f"(?{look}(?i:{some})[_ .-]{end})"]
    return "(?:" + "|".join(looks) + ")" if look == "<=" else "".join(looks)


# --- names ---------------------------------------------------------------------------------------------------------

_SECRETS = _cases("password", "passwd", "passphrase", "passcode", "pswd", "secret", "credential", "credentials")
_KEYS = ("api", "access", "secret", "private", "account", "auth", "encryption", "signing", "license", "master")
_TOKENS = (
    "access", "auth", "bearer", "refresh", "session", "secret", "security", "private", "deploy", "github", "gitlab",
    "slack", "wandb", "api", "oauth", "registry", "identity", "client", "login", "service", "bootstrap", "csrf",
    "xsrf", "vault", "jwt", "personal", "account", "huggingface", "hugging_face", "modelscope", "tenant", "webhook",
    "upload", "push", "kube", "cluster", "docker", "pypi", "telegram", "dingtalk", "feishu", "wecom",
)  # fmt: skip
_SHORT_TOKENS = tuple(
    f"(?<![A-Za-z]){word}"
    for word in ("id", "hf", "hub", "gh", "gl", "git", "ms", "pat", "npm", "sts", "app", "sas", "sa", "bot", "ci")
)
#: Of these, a secret only where the value looks like one.
_WEAK_KEYS = (
    "app", "ssh", "rsa", "aes", "hmac", "service", "storage", "shared", "subscription", "consumer", "session",
    "webhook", "deploy", "project", "decryption", "crypto", "client", "server", "root", "admin", "user", "wandb",
    "openai", "hf", "aws", "oss", "cos", "obs", "tos", "bos", "minio", "swanlab", "comet", "neptune", "dashscope",
    "ark", "zhipu", "deepseek", "moonshot", "anthropic", "gemini", "azure", "tavily", "serper", "cohere", "groq",
    "ngc", "nvidia",
)  # fmt: skip
_NO_KEYS = (
    "CACHE", "SORT", "PRIMARY", "FOREIGN", "PARTITION", "GROUP", "STORE", "INDEX", "LOOKUP", "SHARD", "TEXT",
    "IMAGE", "LABEL", "PROMPT", "INPUT", "OUTPUT", "QUERY", "STATE", "DICT", "FEATURE", "COLUMN",
)  # fmt: skip
#: Tokens of language models and their tokenizers.
_NO_TOKENS = (
    "eos", "bos", "pad", "unk", "sep", "cls", "mask", "image", "video", "audio", "start", "end", "stop", "special",
    "begin", "next", "prev", "last", "first", "current", "new", "best", "top", "target", "input", "output",
    "prompt", "think", "tool", "per", "each", "max", "min", "avg", "num", "total", "by", "word", "sub", "text",
    "out", "in", "every",
)  # fmt: skip
_WHOSE = (
    "user", "db", "root", "admin", "smtp", "ftp", "mysql", "redis", "pg", "mongo", "sudo", "ssh", "proxy", "ldap",
    "mail",
)  # fmt: skip
_KEY_SUFFIX = (
    r"(?:[_ -]?(?:[Ii]d|ID|[Vv]alue|VALUE|[Dd]ata|DATA|[Bb]ase\d\d|BASE\d\d|b\d\d|B\d\d|hash|HASH)|_?\d{1,2})?+"
)
_SUFFIX = r"(?:_?\d{1,2})?+"
#: Whatever has such a name is a secret, whatever it looks like. In capitals, any key and token is one.
_CERTAIN = "(?:{})".format(
    "|".join(
        (
            *(word + _KEY_SUFFIX for word in _SECRETS),
            *(word + _ends(_KEYS, word) + _KEY_SUFFIX for word in ("key", "Key")),
            rf"KEY(?:{_ends(_KEYS, 'KEY')}|(?<=[A-Z0-9]_KEY){_ends(_NO_KEYS, 'KEY', '<!')}){_KEY_SUFFIX}",
            *(word + _ends((*_TOKENS, *_SHORT_TOKENS), word) + _SUFFIX for word in ("token", "Token")),
            (
                rf"TOKEN(?:{_ends((*_TOKENS, *_SHORT_TOKENS), 'TOKEN')}"
                rf"|(?<=[A-Z0-9]_TOKEN){_ends(_NO_TOKENS, 'TOKEN', '<!')}){_SUFFIX}"
            ),
            *(rf"{word}(?<=[A-Z0-9]_{word}){_SUFFIX}" for word in ("PASS", "AUTH", "PSK", "PWD")),
            "PASS(?<=SSHPASS)",
        )
    )
)
_TOKEN = "(?:{})".format("|".join(word + _ends(_NO_TOKENS, word, "<!") for word in ("token", "Token", "TOKEN")))
_PERHAPS = "(?:{})".format(
    "|".join(
        (
            _TOKEN[3:-1],
            *(word + _ends(_WEAK_KEYS, word) + _KEY_SUFFIX for word in ("key", "Key", "KEY")),
            *_cases("pwd", "psw"),
            *(rf"{word}(?<![A-Za-z0-9_]{word})" for word in ("pass", "Pass")),
            "pass" + _ends(_WHOSE, "pass"),
        )
    )
)
_ANY_NAME = rf"(?:{_CERTAIN[3:-1]}|{_PERHAPS[3:-1]})"
_CHINESE = (
    "(?:密[ ]?码|口令|密钥|秘钥|私钥|凭证|凭据|授权码)(?:[ ]?(?:ID|Id|id|[Kk]ey|[Ss]ecret))?+"
    r"(?:\xef\xbc\x88[\x20-\x7e]{0,40}\xef\xbc\x89|\([\x20-\x7e]{0,40}?\))?+"
)

# --- between a name and its value ----------------------------------------------------------------------------------

_QUOTE = "\\\\{0,3}[\"'`]"
#: Blanks, also full-width ones, colours, and what JSON writes for them.
_GAP = r"(?:[ \t]|\xe3\x80\x80|\xc2\xa0|\\{1,3}[ntr]|\x1b\[[0-9;:]{0,20}m){0,80}+"
_CLOSED = (
    r"(?:\[\d{1,4}\])?+(?:[ ](?:\([\w ,-]{1,40}\)|for(?:[ ][\w'\"@./-]{1,60}){1,2}+|from your profile[^:]{0,80}+))?+"
    rf"(?:{_QUOTE}|%\d\d|&quot;|\\{{1,3}}u\d{{4}}|\xe2\x80[\x99\x9d])?+(?:\]|\xef\xbc\x89|\xe3\x80[\x8d\x91])?+"
)
_COLON = r"(?:=>|->|:=|={1,2}|\xe2\x86\x92|:(?!:)|%\d[dDaA]|\xef\xbc[\x9a\x9d])"
_TYPED = (
    r"(?:[bBrRuUfF]{1,2}(?=[\"'])|(?:Some|SecretStr|Secret|str|bytes|Ok)\((?=\\{0,3}[\"'])"
    r"|\xe2\x80[\x98\x9c]|\\{1,3}u\d{4})?+"
)
_IS = rf"{_CLOSED}{_GAP}{_COLON}{_GAP}{_TYPED}"
#: Between the words of a command line, also if it is printed as a list.
_NEXT_WORD = rf"(?:[ \t]{{1,40}}+|{_QUOTE},\ {{0,4}}[bu]?(?={_QUOTE}))"

# --- values --------------------------------------------------------------------------------------------------------

_C = r"[^\s\"'`,;&)\]}\\]"
_ENDS_WORD = r"(?:[\s\"'`)\]},;\\]|$)"
#: Hidden already, a mask, a reference, a place to fill in.
_NO_VALUE = (
    r"(?!\[redacted\])(?![(\[{][\"'])(?!\*{3})(?!\$[A-Z_{(])(?!\$\$)(?!<[A-Za-z_][\w -]{0,40}>)"
    r"(?!\{{1,2}[\w.!: -]{0,40}\})(?!%[sdr(])"
)
_ORDINARY = (
    r"(?!(?:not|is|was|were|are|has|have|no|the|a|an|and|or|in|for|must|cannot|can|could|missing|invalid|required|none"
    r"|None|null|NULL|nil|true|false|True|False|str|int|bytes|bool|Optional|Union|Any|string|failed|failure|error"
    r"|expired|denied|wrong|incorrect|unknown|unset|empty|found|set|yes|provided|given|too|from|with|to|of|on|at|by"
    r"|does|did|should|will|be|been|this|that|your|it|if|when|please|using|unable|mismatch|changed|undefined|default"
    r"|optional|disabled|enabled|accepted|rejected|revoked|authentication|permission|request|only|but|already)"
    r"(?![\w@#$%^*+=/!-]))"
    # The name of what comes next.
    r"(?!(?<=[ \t])[A-Za-z_][\w.-]{0,60}=[^=\s])"
    # Source text of a traceback: `token=os.environ["X"]`, `api_key=api_key`.
    r"(?!(?:os|self|torch|np|numpy|jax|typing|args|cls|config|cfg|kwargs|settings|opts|options|params|getpass|getenv|input|json|environ|env)[.\[(])"
    r"(?![\w.]{0,40}(?:password|passwd|secret|token|key|credentials?)(?:[,)]|\s|$))"
)
_NO_PATH = r"(?!(?:~|\.{1,2}|[A-Z]:|/[a-z][a-z_.-]{1,20})[/\\])"
_NO_NUMBER = (
    rf"(?!0x[0-9a-fA-F]{{1,16}}{_ENDS_WORD}"
    r"|[+-]?[\d.,:/x%-]{1,40}(?:[mun]?s|[kKMGTB%]|[kKMG]i?B|it|e-?\d{1,3})?(?:/s)?"
    rf"{_ENDS_WORD})"
)
#: Four characters with a digit and a letter, eight with a capital, or twenty.
_LIKELY = (
    rf"(?![<\[({{|]){_NO_NUMBER}(?:(?={_C}{{4}})(?={_C}{{0,200}}?[0-9])(?={_C}{{0,200}}?[A-Za-z])"
    rf"|(?={_C}{{8}})(?={_C}{{0,200}}?[A-Z])|(?={_C}{{20}}))"
)
#: Ends of a text, if a blank or nothing follows them.
_ENDING = r")\]}>.|<"
_ASCII = rf"[^\s\"'`&;,\\\x00-\x1f\x7f-\xff{_ENDING}]"
#: Beyond ASCII, but none of the full-width marks that end a clause, and no frame of a table.
_WIDE = r"(?!\xef\xbc[\x8c\x9b\x89\x9a]|\xe3\x80[\x80-\x82\x8d\x91]|\xe2\x80[\x99\x9d]|\xe2\x94|\xc2\xa0)[\x80-\xff]"
_PLAIN = (
    rf"(?:{_ASCII}|[{_ENDING}](?=[{_ENDING}]{{0,8}}+{_ASCII})|{_WIDE}"
    rf"|[,;&](?![\w.-]{{1,60}}[=:])(?={_ASCII})(?![{{\[(])|\\(?![\\ntr\"'u])){{1,2000}}+"
)
_OPEN = rf"(?P<q>{_QUOTE})"
_QUOTED = r"(?:(?!(?P=q))(?:\\.|.)){1,2000}+"
_ANY = rf"(?:{_OPEN}{_NO_VALUE}{_NO_PATH}{_QUOTED}|{_NO_VALUE}{_ORDINARY}{_NO_PATH}{_PLAIN})"
#: Digits in quotes are not a number of tokens.
_LIKE_A_SECRET = (
    rf"(?:{_OPEN}{_NO_VALUE}{_NO_PATH}(?:(?=\d{{4,40}}(?P=q))|{_LIKELY}){_QUOTED}"
    rf"|{_NO_VALUE}{_ORDINARY}{_NO_PATH}{_LIKELY}{_PLAIN})"
)

# --- secrets that are known by their shape -------------------------------------------------------------------------

_ANY_DIGIT = {ord(digit): r"\d" for digit in "0123456789"}
#: A text that begins each, and the pattern.
_SHAPES = (
    ("eyJ", r"eyJ[\w-]{8,2000}\.[\w-]{4,4000}\.[\w.-]{0,4000}"),  # JSON web tokens, also Kubernetes' own
    ("hf_", r"hf_[A-Za-z0-9]{20,200}"),
    ("api_org_", r"api_org_[A-Za-z0-9]{20,200}"),
    *((f"gh{kind}_", rf"gh{kind}_[A-Za-z0-9]{{20,300}}") for kind in "pousr"),
    ("github_pat_", r"github_pat_\w{20,300}"),
    *((f"gl{kind}-", rf"gl{kind}-[\w.-]{{16,300}}") for kind in ("pat", "ptt")),
    ("sk-", r"sk-(?:(?:proj|svcacct|admin|None|ant-[a-z0-9]{2,10}|or-v\d|lf)-[\w-]{16,400}|[A-Za-z0-9]{32,200})"),
    *((f"A{kind}A", rf"A{kind}A[A-Z0-9]{{16}}") for kind in ("KI", "SI", "BI", "CC")),
    ("ABSK", r"ABSK[A-Za-z0-9+/]{80,300}={0,2}"),
    ("LTAI", r"LTAI[A-Za-z0-9]{12,30}"),
    ("STS.", r"STS\.[A-Za-z0-9]{16,100}"),
    ("AKID", r"AKID[\w-]{13,80}"),
    ("AKLT", r"AK(?:LT|TP)[\w+/=-]{16,100}"),
    ("AKTP", r"AKTP[\w+/=-]{16,100}"),
    ("ALTAK", r"ALTAK[\w-]{12,100}"),
    ("bce-auth-v1/", r"bce-auth-v\d/[^\s\"'&,;\\]{16,1000}"),
    ("JDC_", r"JDC_[A-Z0-9]{20,60}"),
    ("xox", r"xox[abeoprs]-[\w-]{10,300}"),
    ("xapp-", r"xapp-[\w-]{20,300}"),
    ("AIza", r"AIza[\w-]{30,60}"),
    ("ya29.", r"ya\d\d\.[\w-]{20,2000}"),
    ("GOCSPX-", r"GOCSPX-[\w-]{20,60}"),
    ("npm_", r"npm_[A-Za-z0-9]{30,60}"),
    ("pypi-AgE", r"pypi-AgE[\w-]{20,2000}"),
    ("dckr_", r"dckr_(?:pat|oat)_[\w-]{20,200}"),
    ("nvapi-", r"nvapi-[\w-]{20,200}"),
    ("gsk_", r"gsk_[A-Za-z0-9]{20,200}"),
    ("r8_", r"r\d_[A-Za-z0-9]{20,100}"),
    ("_live_", r"(?:sk|rk|pk)_live_[A-Za-z0-9]{10,300}"),
    ("_test_", r"(?:sk|rk|pk)_test_[A-Za-z0-9]{16,300}"),
    ("whsec_", r"whsec_[\w+/=-]{16,200}"),
    ("SG.", r"SG\.[\w-]{10,100}\.[\w-]{16,200}"),
    ("AGE-SECRET-KEY-", r"AGE-SECRET-KEY-(?:PQ-)?\d[A-Z0-9]{20,2000}"),
    ("shpat_", r"shpat_[A-Fa-f0-9]{32}"),
    ("dapi", r"dapi[0-9a-f]{32}(?:-\d)?"),
    *((f"hv{kind}.", rf"hv{kind}\.[\w-]{{20,300}}") for kind in "sbr"),
    (".atlasv1.", r"[A-Za-z0-9]{14}\.atlasv\d\.[\w=-]{40,100}"),
    ("_v1_", r"(?:(?:do[opr]|tgp|wandb)_v\d_[\w-]{20,200})"),
    ("tskey-", r"tskey-[a-z]{2,20}-[\w-]{10,100}"),
    ("glsa_", r"glsa_[\w+/=]{20,300}"),
    ("ATATT3", r"ATATT\d[\w=-]{40,400}"),
    ("xai-", r"xai-[A-Za-z0-9]{40,120}"),
    ("pplx-", r"pplx-[A-Za-z0-9]{32,80}"),
    ("key-", r"key-[0-9a-f]{32}"),
    ("SEC", r"SEC[0-9a-f]{64}"),
    ("ms-", r"ms-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    (":AA", r"\d{8,10}:AA[\w-]{32,36}"),
    ("K10", r"K\d\d[0-9a-f]{40,80}::[\w.:-]{8,200}"),
    *(
        (f"${kind}$", rf"\${kind.translate(_ANY_DIGIT)}\$[\w./$=,+-]{{16,300}}")  # hashes of passwords
        for kind in ("6", "y", "apr1", "2a", "2b", "2y", "argon2id")
    ),
)
_HOOKS = (
    ("hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows|triggers)/"),
    ("/open-apis/bot/", r"/open-apis/bot/(?:v\d/)?hook/"),
    ("/trigger-webhook/", r"/trigger-webhook/"),
    ("/webhook", r"/webhooks?/"),
    ("/webhook", r"/webhook/send\?key="),
    ("/robot/send?", r"/robot/send\?access_token="),
    ("/webhook", r"/webhookb\d/"),
    ("/with/key/", r"/with/key/"),
    ("sctapi.ftqq.com/", r"sctapi\.ftqq\.com/"),
    ("api.telegram.org/bot", r"api\.telegram\.org/bot"),
    ("/hooks/", r"/hooks/(?=[\w-]{16})"),
)
_SCHEMES = (
    r"(?:[Bb]earer|BEARER|[Bb]asic|[Tt]oken|Negotiate|NTLM|Digest|OSS\d?|COS|OBS|AWS\d?|TOS|Qiniu|QBox|[A-Z0-9]{1,8}-?HMAC-"
    r"SHA\d{1,3}|HMAC-SHA\d{1,3}|acs|ApiKey|Key|PVEAPIToken)[ ]"
)
_FRAME = r"PRIVATE KEY(?: BLOCK)?-----"
_STAMPED = r"(?:20\d\d-\d\d-\d\dT\S{8,30} )?(?:(?:stdout|stderr) [FP] )?"


def _command(program: str, option: str, value: str = r"[^\s\"'`|;&\\]{1,500}") -> str:
    """`value` behind an option of a program, in a line of a shell or a printed list of words."""
    return rf"(?P<keep>(?<![\w-]){program}(?![\w-])[^|;\n]{{0,300}}?{option})(?P<q>(?:{_QUOTE})?+){_NO_VALUE}{value}"


_APART = rf"(?:(?:{_NEXT_WORD}|=)(?={_QUOTE}|\S))"
_COMMANDS = (
    (
        "curl",
        r"(?:curl|wget|httpie|https?)",
        rf"(?<=[\s\"'])(?:-u|-U|--user|--proxy-user){_APART}?{_QUOTE}?+[^\s:\"']{{0,100}}:",
    ),
    (
        "mysql",
        r"(?:mysql(?:dump|admin|import|show|check|sh|pump)?)",
        rf"(?<=[\s\"'])-p(?:(?=\S)|{_NEXT_WORD}(?={_QUOTE}))",
    ),
    ("mariadb", r"(?:mariadb(?:-dump|-admin)?)", r"(?<=[\s\"'])-p(?=\S)"),
    ("sshpass", "sshpass", rf"(?<=[\s\"'])-p(?:{_NEXT_WORD})?"),
    (
        "login",
        r"(?:docker|podman|nerdctl|helm|oras|skopeo|crane|buildah|az|ctr|vault|gcloud|oc)",
        rf"\blogin\b[^|;\n]{{0,200}}?(?<=[\s\"'])-p{_APART}",
    ),
    ("redis-cli", "redis-cli", rf"(?<=[\s\"'])-a{_APART}"),
    ("mongo", r"mongo(?:sh|dump|restore|export|import)?", rf"(?<=[\s\"'])-p{_APART}"),
    ("ldap", r"ldap(?:search|add|modify|whoami|passwd)", rf"(?<=[\s\"'])-w{_APART}"),
    ("zip", r"(?:zip|unzip|7z|7za|unrar|rar)", rf"(?<=[\s\"'])-[Pp]{_APART}?"),
    ("ipmitool", "ipmitool", rf"(?<=[\s\"'])-P{_APART}"),
    (
        "util",
        r"(?:oss|obs|tos|bce)util(?:64)?",
        rf"(?<=[\s\"'])-(?:i|k|e|sk|ak|t){_APART}(?!\S{{0,60}}aliyuncs|https?:)",
    ),
    ("util", r"(?:oss|obs|tos|bce)util(?:64)?", rf"(?<=[\s\"'])-(?:k|sk){_APART}"),
    ("coscmd", "coscmd", rf"(?<=[\s\"'])-s{_APART}"),
    ("coscmd", "coscmd", rf"(?<=[\s\"'])-a{_APART}"),
    ("smbclient", "smbclient", rf"(?<=[\s\"'])-U{_APART}[^\s%]{{1,60}}%"),
    (
        "login",
        r"(?:wandb|swanlab|clearml|comet|neptune|modelscope|huggingface-cli|hf)",
        rf"\blogin\b(?:{_NEXT_WORD}{_QUOTE}?--?[\w-]{{1,30}}(?:=\S{{1,60}})?{_QUOTE}?){{0,4}}{_NEXT_WORD}(?=\S{{6}})(?!-)(?={_QUOTE}?\S{{0,60}}[0-9])",
    ),
    ("openssl", "openssl", rf"(?<=[\s\"'])(?:-[kK]{_APART}|pass:)"),
    (
        "echo ",
        r"echo(?=[^|]{1,610}+\|)",
        r"[ ](?:-n )?(?=[^|]{1,300}+\|[^|]{0,80}(?:--password-stdin|sudo|chpasswd|wandb login|docker login|passwd))",
    ),
)

# --- the patterns --------------------------------------------------------------------------------------------------

_SURE_STEMS = (
    "assword", "ASSWORD", "asswd", "ASSWD", "assphrase", "ASSPHRASE", "asscode", "ASSCODE", "swd", "SWD", "ecret",
    "ECRET", "redential", "REDENTIAL", "key", "Key", "KEY", "_TOKEN", "_PASS", "SSHPASS", "_AUTH", "_PSK", "_PWD",
)  # fmt: skip
_TOKEN_STEMS = ("oken", "OKEN")
_SHORT = ("pwd", "Pwd", "PWD", "psw", "Psw", "pass", "Pass")
_PAIR_STEMS = ("ak", "AK", "sk", "SK")
_CHINESE_STEMS = ("密码", "密 码", "口令", "密钥", "秘钥", "私钥", "令牌", "凭证", "凭据", "授权码")
#: Characters between a name and its value.
_BEHIND = ("=", ":", '"', "'", "\\", "]", " ", "\t", "\x1b", "|", ">", "%", "：", "）")
_SHAPE_STEMS = tuple(literal for literal, _ in _SHAPES)

#: A line that holds none of these is left as it is, unless it goes on with what began in one before.
LITERALS = frozenset(
    text.encode()
    for text in (
        *_SURE_STEMS,
        *_CHINESE_STEMS,
        *_SHORT,
        *(stem + behind for stem in _TOKEN_STEMS for behind in _BEHIND),
        *(stem + behind for stem in _PAIR_STEMS for behind in ("=", ":", '"', "'", "：")),
        "ak/", "AK/",
        *_SHAPE_STEMS,
        *(literal for literal, _ in _HOOKS),
        *(literal for literal, _, _ in _COMMANDS),
        "uthorization", "UTHORIZATION", "earer ", "EARER ", "asic ", "ookie",
        "PRIVATE KEY", "Private-Lines: ", "@", "ignature=", "ignature%3D", "sig=", "sign=",
        '"auth', "'auth", "_auth", "auth=(", "Auth(", "requirepass ", "masterauth ", "rootpw ", "IDENTIFIED ", "SESSI",
    )
)  # fmt: skip


@functools.cache
def _compiled(text: str) -> re.Pattern[bytes]:
    """Compiled when needed: compiling all takes as long as a command."""
    return re.compile(text.encode())


_NAMED_STEMS = (*_SURE_STEMS, *_TOKEN_STEMS)
#: Between the columns of a table.
_COLUMN = r"(?:(?:\t|[ ]{2})[ \t]{0,80}+|[ ]{0,80}+(?:\||\xe2\x94[\x82\x83]|\xe2\x95\x91)[ ]{0,80}+)"


class _Rule(NamedTuple):
    """A pattern of secrets; a line that it matches has one of the texts `stems`."""

    kind: Kind
    stems: tuple[str, ...]
    pattern: str


_named = functools.partial(_Rule, "name")
#: The quote in front of a value stays, so that JSON remains JSON.
_TABLE = (
    _Rule(
        "private key",
        ("PRIVATE KEY",),
        rf"(?P<keep>-----BEGIN [A-Z0-9 ]{{0,30}}{_FRAME})(?!\[redacted\])(?:(?!-----END).){{1,20000}}",
    ),
    _Rule(
        "header",
        ("uthorization", "UTHORIZATION"),
        rf"(?P<keep>[Aa](?:uthorization|UTHORIZATION)(?:{_CLOSED}{_GAP}[:=]{_GAP}|{_QUOTE},[ ]{{0,4}})"
        rf"(?:b?{_QUOTE})?+(?:{_SCHEMES})?)(?!{_SCHEMES}){_NO_VALUE}{_ORDINARY}[^\s\"'\\,;]{{4,4000}}",
    ),
    _Rule(
        "header",
        ("earer ", "EARER "),
        rf"(?P<keep>\b(?:[Bb]earer|BEARER)\ {{1,4}}+)(?!\[redacted\])(?![a-z]{{1,40}}{_ENDS_WORD})"
        r"[\w.~+/=-]{8,4000}",
    ),
    _Rule(
        "header",
        ("asic ",),
        r"(?P<keep>\b[Bb]asic )(?=[A-Za-z0-9+/]{0,200}?[0-9=])[A-Za-z0-9+/]{10,2000}={0,2}(?![\w.])",
    ),
    _Rule(
        "header",
        ("ookie",),
        rf"(?P<keep>\b(?:[Ss]et-)?[Cc]ookie(?:{_CLOSED}:{_GAP}|{_QUOTE},[ ]{{0,4}})(?:{_QUOTE})?+)"
        r"(?!\[redacted\])[^\"'\\]{4,4000}",
    ),
    _Rule(
        "url",
        ("@",),
        r"(?P<keep>(?<![\w+.-])[A-Za-z][\w+.-]{0,30}://[^\s/:@\"']{0,200}:)(?!\[redacted\]@)(?!\d{1,5}[/?#])"
        r"[^\s\"'<>,?#]{1,500}(?=@)",
    ),
    _Rule("url", ("@",), r"(?P<keep>(?<![\w+.-])[A-Za-z][\w+.-]{0,30}://)[\w.~%-]{20,500}(?=@)"),
    _Rule("url", ("@",), r"(?P<keep>(?<![\w.-])[\w.-]{1,60}:)(?!\[redacted\]@)[^\s/:@\"']{4,200}(?=@(?:tcp|unix)\()"),
    _Rule(
        "url",
        tuple(literal for literal, _ in _HOOKS),
        rf"(?P<keep>{'|'.join(pattern for _, pattern in _HOOKS)})(?!\[redacted\])(?=[\w./@:%+-]{{0,200}}[0-9])"
        r"[^\s\"'<>\\,;)]{8,400}",
    ),
    _Rule(
        "url",
        ("ignature", "sig=", "sign="),
        r"(?P<keep>(?:[Ss]ignature|(?<=[?&;])[Ss]ig|(?<![A-Za-z])sign)(?:=|%\d[dD]))(?!\[redacted\])"
        r"(?=[\w%+/.~-]{0,200}[0-9])[\w%+/=.~-]{8,2000}",
    ),
    _Rule("shape", _SHAPE_STEMS, "(?<![A-Za-z0-9])(?:" + "|".join(shape for _, shape in _SHAPES) + ")"),
    *(_named((literal,), _command(*words)) for literal, *words in _COMMANDS),
    # A name and its value as two values: `{"name": "HF_TOKEN", "value": "..."}`, `<name>x</name><value>...`.
    _named(
        _NAMED_STEMS,
        rf"(?P<keep>\b(?:[Nn]ame|NAME|[Kk]ey|KEY)(?:{_IS}|>)(?:{_QUOTE})?+[\w.-]{{0,60}}?{_CERTAIN}(?!\w)"
        rf"[\s,;<>/{{}}\w\"'`\\|-]{{0,40}}?\b(?:[Vv]alue|VALUE)(?:{_IS}|>)){_ANY}",
    ),
    _named(
        _TOKEN_STEMS,
        rf"(?P<keep>\b(?:[Nn]ame|NAME|[Kk]ey|KEY)(?:{_IS}|>)(?:{_QUOTE})?+[\w.-]{{0,60}}?{_TOKEN}(?!\w)"
        rf"[\s,;<>/{{}}\w\"'`\\|-]{{0,40}}?\b(?:[Vv]alue|VALUE)(?:{_IS}|>)){_LIKE_A_SECRET}",
    ),
    # `("HF_TOKEN", "...")`, `["--token", "..."]`
    _named(
        _NAMED_STEMS,
        rf"(?P<keep>(?:[(][ ]{{0,4}}b?{_QUOTE}[\w. -]{{0,60}}?{_CERTAIN}|{_QUOTE}--[\w-]{{0,60}}?{_ANY_NAME})"
        rf"{_QUOTE}[ ]{{0,4}},[ ]{{0,4}}b?){_OPEN}(?!-){_NO_VALUE}{_QUOTED}(?=(?P=q)[ ]{{0,4}}[)\]}},])",
    ),
    _named(
        _NAMED_STEMS,
        rf"(?P<keep>[(\[{{][ ]{{0,4}}b?{_QUOTE}[\w. -]{{0,60}}?(?:{_CERTAIN}|{_TOKEN}){_QUOTE}"
        r"[ ]{0,4},[ ]{0,4}b?)"
        rf"{_OPEN}{_NO_VALUE}{_LIKELY}{_QUOTED}(?=(?P=q))",
    ),
    # `passwords: ["...", "..."]`: all of it.
    _named(
        _SURE_STEMS,
        rf"(?P<keep>{_CERTAIN}s?{_IS}[\[(][ ]{{0,8}}b?){_OPEN}(?!\[redacted\])"
        r"(?:(?!(?P=q),?[ ]{0,8}[\])]).){1,4000}+(?=(?P=q))",
    ),
    _named(_SURE_STEMS, rf"(?P<keep>{_CERTAIN}s{_IS}[\[(][ ]{{0,8}})(?![ \]){{\"'])[^\])\"'{{}}]{{4,2000}}"),
    # XML
    _named(_NAMED_STEMS, rf"(?P<keep>{_ANY_NAME}>)(?!\s|\[redacted\]|<)[^<]{{1,2000}}(?=</)"),
    _named(_NAMED_STEMS, rf"(?P<keep>{_CERTAIN}{_IS}){_ANY}"),
    _named((*_TOKEN_STEMS, *_SHORT, "key", "Key", "KEY"), rf"(?P<keep>{_PERHAPS}{_IS}){_LIKE_A_SECRET}"),
    _named(("oken=",), r"(?P<keep>[?&][Tt]oken=)(?!\[redacted\])[^&\s\"'<>\\]{3,2000}"),
    _named(("key=",), rf"(?P<keep>[?&](?:auth_)?key=)(?!\[redacted\])(?={_C}{{12}}){_LIKELY}[^&\s\"'<>\\]{{3,2000}}"),
    # The value in front of its name, as a tuple of two, and behind the words of a sentence.
    _named(
        ("alue",),
        rf"(?P<keep>\b[Vv]alue{_IS}){_OPEN}{_NO_VALUE}{_QUOTED}(?=(?P=q)[\s,;]{{0,8}}(?:{_QUOTE})?(?:[Nn]ame|[Kk]ey){_IS}(?:{_QUOTE})?+[\w.-]{{0,60}}?{_CERTAIN}(?!\w))",
    ),
    _named(
        ("auth=(", "Auth("),
        rf"(?P<keep>(?:auth=|[a-z]Auth)\([ ]{{0,4}}b?{_QUOTE}[^\"']{{0,100}}{_QUOTE},[ ]{{0,4}}b?)"
        rf"{_OPEN}{_NO_VALUE}{_QUOTED}",
    ),
    _named(("login",), rf"(?P<keep>\blogin\([^()]{{0,100}}?\b(?:key|token|pw)=){_OPEN}{_NO_VALUE}{_QUOTED}"),
    _named(
        _NAMED_STEMS,
        rf"(?P<keep>{_ANY_NAME}[ ])(?={_C}{{10}})(?={_C}{{0,200}}?[0-9])(?={_C}{{0,200}}?[A-Z])"
        rf"(?={_C}{{0,200}}?[a-z]){_LIKE_A_SECRET}",
    ),
    _named(("SESSI",), r"(?P<keep>\b(?:JSESSIONID|PHPSESSID)=)(?!\[redacted\])[\w.-]{6,400}"),
    _named(
        _CHINESE_STEMS, rf"(?P<keep>{_CHINESE}{_CLOSED}{_GAP}(?:(?:是|为)?{_COLON}|是|为){_GAP}{_TYPED})(?=[!-~]){_ANY}"
    ),
    _named(_CHINESE_STEMS, rf"(?P<keep>{_CHINESE}[ ]{{1,4}})(?=[!-~]){_LIKE_A_SECRET}"),
    _named(
        ("令牌",), rf"(?P<keep>令牌{_CLOSED}{_GAP}(?:(?:是|为)?{_COLON}|是|为){_GAP}{_TYPED})(?=[!-~]){_LIKE_A_SECRET}"
    ),
    _named(
        ("ak/", "AK/"),
        r"(?P<keep>\b(?:ak/sk|AK/SK)[ ]{0,4}+(?:=|:|\xef\xbc\x9a)[ ]{0,4}+)"
        r"[\w+=-]{4,100}[ ]?[/:, ][ ]?[\w+/=-]{4,200}",
    ),
    _named(
        _PAIR_STEMS,
        rf"(?P<keep>(?<![A-Za-z0-9])(?:[as]k|[AS]K)[\"']?+(?:=|:|\xef\xbc\x9a)[ ]{{0,4}}+)"
        rf"{_LIKE_A_SECRET}",
    ),
    # Words of a command line: `--token x`.
    _named(_NAMED_STEMS, rf"(?P<keep>(?<![\w-])--[\w-]{{0,60}}?{_ANY_NAME}\ {{1,4}}+)(?!-){_ANY}"),
    # `password x` of .netrc, `ENV HF_TOKEN x`, `requirepass x`, `aws configure set aws_secret_access_key x`
    _named(
        ("assword", "requirepass", "masterauth", "rootpw ", "IDENTIFIED"),
        rf"(?P<keep>(?:\blogin[ \t]{{1,8}}\S{{1,200}}[ \t]{{1,8}}password"
        r"|^(?:\S{1,80}[ ]){0,3}[ \t]{0,40}password(?=[ \t]{1,8}\S{1,200}\s{0,8}$)"
        rf"|requirepass|masterauth|rootpw(?: --\w{{1,20}})?|IDENTIFIED(?: WITH \w{{1,40}})? BY)[ \t]{{1,8}}+)"
        rf"{_ANY}",
    ),
    _named(
        _NAMED_STEMS,
        rf"(?P<keep>(?<!\w)(?:ENV|ARG|setenv|set|SET|put)[ ]{{1,4}}+[\w.-]{{0,60}}?{_ANY_NAME}[ ]{{1,4}}+)"
        rf"{_LIKE_A_SECRET}",
    ),
    _named(
        ("assword ", "ASSWORD ", "assphrase "),
        rf"(?P<keep>\b(?:[Pp]assword|PASSWORD|[Pp]assphrase)[ ]){_OPEN}{_NO_VALUE}{_QUOTED}(?=(?P=q))",
    ),
    _named(
        ("assword is", "assphrase is", "oken is", "ey is", "ecret is"),
        rf"(?P<keep>{_ANY_NAME}[ ]is:?[ ]){_LIKE_A_SECRET}",
    ),
    # Columns of a table
    _named(_NAMED_STEMS, rf"(?P<keep>{_ANY_NAME}{_COLUMN}){_LIKE_A_SECRET}"),
    # In docker's configuration
    _named(
        ('"auth', "'auth", "_auth"),
        rf"(?P<keep>[\"'_]auth[\"']?{_GAP}[:=]{_GAP}){_OPEN}?(?!\[redacted\])(?=[\w+/=:-]{{0,200}}[0-9=])[\w+/=:-]{{8,2000}}",
    ),
)
#: Of a line, `_hide` knows the digits as zeros.
_DIGITS = bytes(0x30 if 0x30 <= code <= 0x39 else code for code in range(256))
_PATTERNS = tuple(
    (kind, tuple(stem.encode().translate(_DIGITS) for stem in stems), pattern) for kind, stems, pattern in _TABLE
)
_HIDDEN = HIDDEN.encode()
_SURE_NAME = rf"{_CERTAIN}s?\Z"
_PERHAPS_NAME = rf"{_PERHAPS}\Z"
_LIKELY_TEXT = _compiled(rf"(?:\d{{4,40}}$|{_LIKELY})")

# --- secrets over several lines ------------------------------------------------------------------------------------

_BEGINS = _compiled(rf"-----BEGIN [A-Z0-9 ]{{0,30}}{_FRAME}|Private-Lines: \d")
_ENDS = _compiled(rf"-----END [A-Z0-9 ]{{0,30}}{_FRAME}|Private-MAC: ")
#: A line of a key: one word behind a stamp and a prefix, or a long one of base64.
_OF_KEY = _compiled(
    rf"(?P<keep>{_STAMPED}(?:\[[^\]\s]{{1,60}}\]:? |[\w./-]{{1,80}}: )?\s{{0,40}}{_QUOTE}?+)"
    rf"(?:[A-Za-z0-9+/]{{1,200}}={{0,2}}|=[A-Za-z0-9+/]{{4}}|(?:Proc-Type|DEK-Info|Version|Comment): .{{1,200}})"
    rf"(?:\\{{1,3}}n)?{_QUOTE}?,?\s{{0,4}}"
)
#: The same behind any prefix.
_WORD_OF_KEY = _compiled(r"(?P<keep>[^A-Za-z0-9+/])[A-Za-z0-9+/]{24,200}={0,2}[\"',\s]{0,4}\Z")
_BASE64_LINE = _compiled(r"(?P<keep>(?:20\d\d-\d\d-\d\dT\S{8,30} )?)[A-Za-z0-9+/]{60,80}={0,2}")
#: Lines of a private key at most: of a longer one something else has come between.
_KEY_LINES = 200

#: A name at the end of its line, whose value is on the lines that follow.
_OPENS = (
    rf"(?P<name>(?:{_CERTAIN})s?|{_PERHAPS})"
    rf"(?:{_CLOSED}{_GAP}{_COLON}{_GAP}(?P<open>[|>][+-]?\d?|[\[(]|\\)?|{_QUOTE},|[ ]\\)\s{{0,40}}$"
)
_NAMES_NEXT = (
    rf"\b(?:[Nn]ame|NAME|[Kk]ey|KEY){_IS}(?:{_QUOTE})?+[\w.-]{{0,60}}?{_ANY_NAME}(?:{_QUOTE})?+[,;]?\s{{0,40}}$"
)
_VALUE_NEXT = rf"(?P<keep>\b(?:[Vv]alue|VALUE){_IS}){_ANY}"
#: The value of such a name: one word, or a text in quotes.
_ONE_VALUE = _compiled(
    rf"^(?P<keep>(?:- )?b?)(?:{_OPEN}{_NO_VALUE}{_QUOTED}(?=(?P=q)[,;\])}}]{{0,3}}\s{{0,20}}$)"
    rf"|{_NO_VALUE}{_ORDINARY}(?![\[\](){{}}#])[^\s\"'`]{{1,2000}}+(?=\s{{0,20}}$))"
)
_ONE_WORD = _compiled(
    rf"\s{{0,40}}{_QUOTE}?+(?:[A-Za-z0-9+/]{{1,200}}={{0,2}}|=[A-Za-z0-9+/]{{4}})(?:\\{{1,3}}n)?{_QUOTE}?,?\s{{0,4}}"
)
_STAMP = _compiled(_STAMPED)
_OF_WORDS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-\"'"
_BLOCKS, _LISTS = (b"|", b">"), (b"[", b"(")
_FOLLOWING = 50
_NAME_STEMS = (b"ame", b"AME", b"ey", b"EY")
#: Last bytes of a line whose value may be on the next: a quick check.
_MAY_OPEN = frozenset(bytes([code]) for code in (*b":=|>[(\\,+-m0123456789", *range(0x80, 0x100)))

#: Bytes of a line whose form is kept, and forms that are.
_SHAPE, _SHAPES_KEPT = 400, 2_000


class Redactor:
    """Hides secrets in one stream of lines; a secret may span many lines. The number of lines is kept.

    `holds` returns whether bytes contain one of `LITERALS`: a quick check before the search. `cut`: the stream may
    begin in the middle of a key, as a log that was cut at its top.
    """

    def __init__(
        self, holds: Callable[[bytes], bool] | None = None, found: Counter[Kind] | None = None, *, cut: bool = False
    ) -> None:
        """`found` counts the hidden secrets, over several streams if it is shared."""
        self.found: Counter[Kind] = Counter() if found is None else found
        self._holds = holds
        self._inside = 0
        self._prefix = b""
        self._follows: _Following | None = None
        self._harmless: set[bytes] = set()
        self._top = cut

    @property
    def quiet(self) -> bool:
        """Whether lines without a literal stay as they are."""
        return not self._inside and not self._top and self._follows is None

    def line(self, data: bytes) -> bytes:
        """One line, with or without its newline."""
        if self._top:
            self._top = False
            if _BASE64_LINE.fullmatch(data.rstrip(b"\r\n")):
                self._top = True
                return self._of_key(data, _BASE64_LINE)
        if self._inside:
            self._inside -= 1
            if _ENDS.search(data):
                self._inside = 0
            elif (made := self._inside_key(data)) is not None:
                return made
        if self._follows is not None and (made := self._following(data)) is not None:
            return made
        if self._holds is not None and not self._holds(data):
            return data
        # A training prints the same line again and again, with other numbers: to the patterns all digits are alike.
        shape = data.translate(_DIGITS) if len(data) <= _SHAPE else b""
        if shape in self._harmless:
            return data
        body = data.rstrip(b"\r\n")
        opened = False
        if (begin := _BEGINS.search(data)) and not _ENDS.search(data, begin.end()):
            self._inside, self._prefix, opened = _KEY_LINES, data[: begin.start()].translate(_DIGITS), True
        elif following := _Following.of(body):
            self._follows, opened = following, True
        hidden = _hide(data, self.found)
        if hidden == data and shape and not opened:
            if len(self._harmless) >= _SHAPES_KEPT:
                self._harmless.clear()
            self._harmless.add(shape)
        return hidden

    def _of_key(self, data: bytes, pattern: re.Pattern[bytes]) -> bytes:
        self.found["private key"] += 1
        body = data.rstrip(b"\r\n")
        return pattern.sub(rb"\g<keep>" + _HIDDEN, body, count=1) + data[len(body) :]

    def _inside_key(self, data: bytes) -> bytes | None:
        """A line of a key, hidden. None if another line came between."""
        body = data.rstrip(b"\r\n")
        if _OF_KEY.fullmatch(body):
            return self._of_key(data, _OF_KEY)
        if _WORD_OF_KEY.search(body):
            return self._of_key(data, _WORD_OF_KEY)
        kept, rest = _behind(body, self._prefix)
        if kept is None or not _ONE_WORD.fullmatch(rest):
            return None
        self.found["private key"] += 1
        return kept + _HIDDEN + data[len(body) :]

    def _following(self, data: bytes) -> bytes | None:
        """A line with the value of a name on an earlier line, hidden. None if it has no value."""
        follows = self._follows
        assert follows is not None
        body = data.rstrip(b"\r\n")
        follows.left -= 1
        made = follows.hidden(body)
        if follows.left <= 0:
            self._follows = None
        if made is None:
            return None
        self.found["name"] += 1
        return made + data[len(body) :]


@dataclass(slots=True)
class _Following:
    """A name whose value is on lines that follow: how they begin, how far they are indented, how many may come."""

    kind: Literal["value", "word", "block", "list"]
    prefix: bytes
    indent: int
    certain: bool
    left: int

    @classmethod
    def of(cls, body: bytes) -> _Following | None:
        stamp = _STAMP.match(body)
        body = body[stamp.end() :] if stamp else body
        if any(stem in body for stem in _NAME_STEMS) and _compiled(_NAMES_NEXT).search(body):
            return cls("value", b"", 0, True, 3)
        match = _compiled(_OPENS).search(body) if body.rstrip()[-1:] in _MAY_OPEN else None
        if match is None:
            return None
        head = body[: match.start("name")]
        before = head.rstrip(_OF_WORDS)
        if match[0].rstrip()[-1:] in b",\\" and b"--" not in head[len(before) :]:
            return None
        outer = before.rstrip(b" \t-")
        certain = _compiled(_PERHAPS).fullmatch(match["name"]) is None
        opened = (match["open"] or b"")[:1]
        kind: Literal["word", "block", "list"] = (
            "block" if opened in _BLOCKS else "list" if opened in _LISTS else "word"
        )
        return cls(
            kind, outer.translate(_DIGITS), len(before) - len(outer), certain, 2 if kind == "word" else _FOLLOWING
        )

    def hidden(self, body: bytes) -> bytes | None:
        """The line with its value hidden. None if it has none; `left` is 0 if no further value can follow."""
        if self.kind == "value":
            made, count = _compiled(_VALUE_NEXT).subn(_replaced, body, count=1)
            self.left = 0 if count else self.left
            return made if count else None
        kept, rest = _behind(body, self.prefix)
        if kept is None:
            if self.kind != "word":
                return None  # another process's line came between
            kept, rest = b"", body
        text = rest.lstrip(b" \t")
        indent = len(rest) - len(text)
        kept += rest[:indent]
        if not text:
            return None
        if self.kind == "block":
            if indent > self.indent:
                return kept + _HIDDEN
            self.left = 0
            return None
        match = _ONE_VALUE.match(text)
        dashed = text.startswith(b"- ")
        value = b"" if match is None else match[0][len(match["keep"] + (match["q"] or b"")) :]
        shown = match is None or (
            self.kind == "word"
            and not _LIKELY_TEXT.match(value)
            and not (self.certain and (indent > self.indent or dashed))
        )
        if shown or (self.kind == "word" and not dashed):
            self.left = 0
        elif dashed:
            self.left = _FOLLOWING
        return None if shown else kept + _ONE_VALUE.sub(_replaced, text, count=1)


def _behind(body: bytes, prefix: bytes) -> tuple[bytes | None, bytes]:
    """The line after its timestamp and a prefix that differs from `prefix` at most in digits. None for another
    prefix."""
    stamp = _STAMP.match(body)
    end = (stamp.end() if stamp else 0) + len(prefix)
    if body[end - len(prefix) : end].translate(_DIGITS) != prefix:
        return None, body
    return body[:end], body[end:]


def _replaced(match: re.Match[bytes]) -> bytes:
    groups = match.groupdict()
    return (groups.get("keep") or b"") + (groups.get("q") or b"") + _HIDDEN


def _hide(data: bytes, found: Counter[Kind]) -> bytes:
    end = b"\r\n" if data.endswith(b"\r\n") else b"\n" if data.endswith(b"\n") else b""
    body = data[: len(data) - len(end)]
    alike = body.translate(_DIGITS)
    for kind, stems, pattern in _PATTERNS:
        for stem in stems:  # several times as fast as any() over a generator, and every busy line comes here
            if stem in alike:
                body, count = _compiled(pattern).subn(_replaced, body)
                if count:
                    found[kind] += count
                break
    return body + end


def redact_text(text: str, found: Counter[Kind] | None = None) -> str:
    """A text of one or several lines; `text` itself, which may be a message, if there is nothing to hide."""
    redactor = Redactor(found=found)
    lines = text.encode("utf-8", "surrogatepass").split(b"\n")
    hidden = b"\n".join(map(redactor.line, lines)).decode("utf-8", "surrogatepass")
    return text if hidden == text else hidden


def redact_json(value: Any, found: Counter[Kind] | None = None, depth: int = 0) -> Any:
    """A value of JSON: texts as `redact_text`, and texts and numbers under the name of a secret.

    Pairs like `{"name": "HF_TOKEN", "value": "..."}` and words of a command line are understood. Values nested deeper
    than 60 are omitted.
    """
    found = Counter() if found is None else found
    if isinstance(value, str):
        return redact_text(value, found)
    if depth > 60:
        return None if isinstance(value, dict | list) else value
    if isinstance(value, list):
        made_list: list[Any] = []
        for before, item in zip([None, *value], value, strict=False):
            option = isinstance(before, str) and before.startswith("--") and "=" not in before
            made_list.append(_under(before[2:] if option else "", item, found, depth))
        return made_list
    if not isinstance(value, dict):
        return value
    named = value.get("name", value.get("key"))
    return {
        name: _under(named if name == "value" and isinstance(named, str) else str(name), item, found, depth)
        for name, item in value.items()
    }


def _under(name: str, item: Any, found: Counter[Kind], depth: int) -> Any:
    """`item` as `redact_json` makes it under a name."""
    if isinstance(item, list) and item and all(isinstance(one, str) for one in item) and _is_sure(name):
        return [_under(name, one, found, depth) for one in item]
    number = isinstance(item, int | float) and not isinstance(item, bool)
    text = isinstance(item, str) and item != "" and item != HIDDEN
    if _is_sure(name):
        secret = text or number
    else:
        secret = text and is_secret_name(name) and _LIKELY_TEXT.match(item.encode("utf-8", "replace")) is not None
    if secret:
        found["name"] += 1
        return HIDDEN
    return redact_json(item, found, depth + 1)


def redact_json_bytes(data: bytes, found: Counter[Kind] | None = None) -> bytes:
    """A JSON document on one line, or line by line if it is not JSON. The result has as many lines."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        redactor = Redactor(found=found)
        return b"\n".join(map(redactor.line, data.split(b"\n")))
    made = redact_json(value, found)
    if made == value:
        return data
    lines = data.count(b"\n")
    text = json.dumps(made).encode()
    return text + b"\n" * lines


def is_secret_name(name: str) -> bool:
    """Whether a name says that its value is a secret: `HF_TOKEN`, `db.password`, `apiKey`."""
    return len(name) <= 500 and (_is_sure(name) or _ends_in(_PERHAPS_NAME, name))


def _is_sure(name: str) -> bool:
    return len(name) <= 500 and (_ends_in(_SURE_NAME, name) or name in _CHINESE_STEMS)


def _ends_in(pattern: str, name: str) -> bool:
    return _compiled(pattern).search(name.encode("utf-8", "replace")) is not None


#: The name that a text of atlctl's own may give a secret, in any case.
_NAMES = r"(?:token|password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w-]{0,60}+"
_SUSPECT = re.compile(
    rf"""
    (?P<keep>
        \bauthorization["']?\s{{0,80}}+[:=]\s{{0,80}}+(?:(?:bearer|basic|token)\s{{1,80}}+)?
      | \bbearer\s{{1,80}}+
      | (?<![\w-])--[\w-]{{0,60}}?{_NAMES}\s{{1,80}}+
      | {_NAMES}["']?\s{{0,80}}+[:=]\s{{0,80}}+
    )
    (?!\[redacted\])(?:"[^"\n]{{0,4000}}"?|'[^'\n]{{0,4000}}'?|[^\s"',;&]+)
    """,
    re.IGNORECASE | re.VERBOSE,
)


def redact_diagnostics(text: str) -> str:
    """The same for atlctl's own diagnostics, where hiding too much does no harm: every value with such a name."""
    return redact_text(_SUSPECT.sub(rf"\g<keep>{HIDDEN}", text))
