"""Secrets in log formats, generated at run time, and ordinary logs in which nothing is redacted.

This file contains no complete secret and no known prefix of one, so that scanners do not report a leak.
"""
# ruff: noqa: E501 - lines of logs

from __future__ import annotations

import base64
import random
import string
import uuid

import pytest

from atlctl.diagnosis.scanner import sieve_for
from atlctl.render.redact import LITERALS, Redactor

LETTERS = string.ascii_letters
WORD = LETTERS + string.digits
CHANCE = random.Random(20261120)


def some(count: int, alphabet: str = WORD) -> str:
    """`count` characters, including a letter and a digit if the alphabet has both."""
    made = [CHANCE.choice(alphabet) for _ in range(count)]
    if count > 1 and set(alphabet) & set(string.digits) and set(alphabet) - set(string.digits):
        made[0] = CHANCE.choice(sorted(set(alphabet) - set(string.digits)))
        made[1] = CHANCE.choice(sorted(set(alphabet) & set(string.digits)))
    return "".join(made)


def hexed(count: int) -> str:
    return some(count, "0123456789abcdef")


def digits(count: int) -> str:
    return some(count, string.digits)


def base(count: int) -> str:
    return base64.b64encode(CHANCE.randbytes(count)).decode()


def special(count: int) -> str:
    return some(count - 3, WORD) + "!x#"


def capital(count: int) -> str:
    return some(count, string.ascii_uppercase + string.digits)


def uid() -> str:
    return str(uuid.UUID(int=CHANCE.getrandbits(128), version=4))


#: A context with `@` for the secret, and the secret. A fixed part before its random part belongs to it.
CANARIES: list[tuple[str, str]] = []


def add(secret: str, *contexts: str) -> None:
    CANARIES.extend((context, secret) for context in contexts)


# Padding, tabs, colours, quotes.
add(
    some(12),
    "password      : @",
    "password\t=\t@",
    "db_password\t@",
    "  HF_TOKEN            =    @",
    "secret_key \t : \t@",
)
add(
    some(14), "\x1b[32mpassword\x1b[0m=\x1b[31m@\x1b[0m", '\x1b[94m"api_key"\x1b[39;49;00m:\x1b[37m \x1b[39m\x1b[33m"@"'
)
add(
    special(12),
    "password=@",
    "password = '@'",
    'PASSWORD: "@"',
    "`password`: `@`",
    "Password:@",
    "passwd=>'@'",
    "passwd := @",
)
add(
    some(10),
    "env: DB_PASSWORD=@ RANK=3",
    "export MYSQL_PWD='@'",
    'declare -x REDIS_PASS="@"',
    "SMTP_AUTH=@",
    "db.password=@",
)
add(
    some(16),
    "spring.datasource.password: @",
    "password=b'@'",
    "SecretStr('x'); password=SecretStr('@')",
    'password: Some("@")',
)
add(some(11), 'kwargs={"user": "x", "password": "@", "port": 1}', "{'db': {'password': '@'}}", r"{\"password\": \"@\"}")
add(
    some(11),
    r'"{\\\"password\\\": \\\"@\\\"}"',
    r'"line\npassword:\t@\nnext"',
    "password[0]=@",
    "password2=@",
    "password_1: @",
)
add(
    special(14),
    "passphrase=@",
    "user=x;password=@;host=y",
    "user=x&password=@&host=y",
    "user=x,password=@,host=y",
    "Pwd=@;",
)
# Digits and short values.
add(
    digits(6),
    "password=@",
    "HF_TOKEN=@",
    "api_key: @",
    '{"access_token": "@"}',
    "auth_token=@",
    "password: @,",
    '"token": "@"',
)
add(
    some(5),
    "HF_TOKEN=@",
    "token=@",
    "api-key: @",
    "--token @",
    "--password=@",
    "https://h.example/x?token=@&y=1",
    "secret: @",
)
add(digits(8), '{"password": @}', "password='@'", "passcode: @")
# Lists, tuples, following lines, blocks, pairs.
add(
    some(18),
    '"passwords": ["@"]',
    '"api_keys": ["a1b2", "@"]',
    "passwords=['x', '@']",
    "passwords: [@]",
    "('password', '@')",
)
add(some(18), "[('HF_TOKEN', '@'), ('RANK', '0')]", 'os.environ.setdefault("HF_TOKEN", "@")', "[b'x-api-key', b'@']")
add(
    some(18),
    '["python", "train.py", "--hf-token", "@"]',
    "argv: ['--password', '@', '-v']",
    '("authorization", "Bearer @")',
)
add(
    some(20),
    "password:\n  @",
    "password: |\n  @\nnext: 1",
    "api_key: >-\n    @",
    "[rank0]: password:\n[rank0]:   @",
    "passwords:\n  - @\n  - x",
)
add(
    some(20),
    '"password":\n   "@",',
    '"passwords": [\n  "@"\n]',
    '"--api-key",\n"@",',
    "--token \\\n  @",
    "HF_TOKEN:\n@",
)
add(some(20), "- name: HF_TOKEN\n  value: @", '- name: HF_TOKEN\n  value: "@"', '"name": "DB_PASSWORD",\n"value": "@"')
add(
    some(20),
    '{"name": "WANDB_API_KEY", "value": "@"}',
    "V1EnvVar(name='HF_TOKEN', value='@')",
    "{'name': 'HF_TOKEN', 'value': '@', 'value_from': None}",
)
add(
    some(20),
    "<password>@</password>",
    "<name>fs.s3a.secret.key</name><value>@</value>",
    "{'name': 'HF_TOKEN',\n 'value': '@',\n 'value_from': None}",
)
add(some(20), "2026-11-20T17:45:05.1Z secret:\n2026-11-20T17:45:05.123Z   @", "{key: api_key, value: @}")
# Tables.
add(
    some(22),
    "HF_TOKEN        @",
    "| HF_TOKEN | @ |",
    "│ password   │ @ │",
    "password\t\t@",
    "| user | x |\n| db_password | @ |",
)
# Private keys.
KEY = "\n".join(base(48) for _ in range(4))
FRAME = "-----{} {}PRIVATE KEY{}-----"


def framed(prefix: str, kind: str = "RSA ", block: str = "", between: str = "\n") -> str:
    lines = [FRAME.format("BEGIN", kind, block), *["@"], FRAME.format("END", kind, block)]
    return between.join(prefix + line for line in lines)


add(base(48), framed("[rank0]: "), framed("2026-11-20 17:45:05,123 INFO train.py:88 - "), framed("worker-3 | "))
add(
    base(48),
    framed("", "OPENSSH "),
    framed("  ", ""),
    framed("", "EC "),
    framed("(RayActor pid=4711) ", ""),
    framed("", "ENCRYPTED "),
)
add(base(48), framed("", "PGP ", " BLOCK"), framed("I1120 17:45:05.123456 4711 x.py:9] ", "PGP ", " BLOCK"))
add(base(48), framed("", "", "", r"\n"), 'json: {"private_key": "' + framed("", "", "", r"\n") + '"}')
add(
    base(48),
    "PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\n@\nPrivate-MAC: 12",
    "\x1b[31m" + framed("", "DSA "),
)
# Chinese.
add(
    some(12),
    "密码：@",
    "密码: @",
    "口令：@",
    "数据库密码是：@",
    "登录密码为@",
    "密码=“@”",
    "密钥：@，请勿外传",
    "私钥: '@'",
    "访问凭证：@",
)
add(
    some(24),
    "令牌：@",
    "授权码：@",
    "password：@",
    "API密钥（api key）：@",
    "AK：@",
    "SK：@",
    "ak=@",
    "sk: '@'",
    '"sk": "@"',
    "ak/sk: x1/@",
)
add(digits(8), "密码：@", "口令是@", "用户 admin 密码 = @")
# The Chinese clouds.
add("LT" + "AI" + some(20), "@", "accessKeyId: @", "OSS id @ used", "url?OSSAccessKeyId=@&x=1")
add("AK" + "ID" + some(32), "@", "secretId=@")
add("AK" + "LT" + base(30).rstrip("="), "@", "volc ak @")
add("ALT" + "AK" + some(22), "@")
add(
    some(30),
    "accessKeySecret: @",
    "AccessKeySecret=@",
    "SecretKey: @",
    "secret_id=@",
    "fs.oss.accessKeySecret=@",
    "ALIBABA_CLOUD_ACCESS_KEY_SECRET=@",
)
add(capital(20), "HUAWEICLOUD_SDK_AK=@", "access_key_id=@", "access.key: @", "OBS_ACCESS_KEY_ID: @", "X-Auth-Token: @")
add(some(40), "HUAWEICLOUD_SDK_SK=@", "secret.key=@", "TOS_SECRET_KEY=@", "VOLC_SECRETKEY=@", "x-bce-security-token: @")
add(
    "bce-auth-v" + "1/" + hexed(32) + "/2026-11-20T17:45:05Z/1800/host/" + hexed(64),
    "authorization: @",
    "?authorization=@",
    "sent @",
)
SIGNED = "https://bucket.example.com/data/shard-0001.tar?"
add(
    base(20).replace("+", "%2B").replace("=", "%3D"),
    SIGNED + "Expires=1732100000&OSSAccessKeyId=x&Signature=@",
    SIGNED + "AWSAccessKeyId=x&Signature=@&Expires=1",
)
add(
    hexed(40),
    SIGNED + "q-sign-algorithm=sha1&q-ak=x&q-signature=@",
    SIGNED + "q-signature=@&q-url-param-list=",
    SIGNED + "sign=@",
)
add(
    hexed(64),
    SIGNED + "X-Tos-Signature=@&X-Tos-Date=1",
    SIGNED + "X-Amz-Signature=@",
    SIGNED + "x-oss-signature=@",
    r"url: a?x=1\u0026Signature=@",
)
add(
    some(60),
    SIGNED + "security-token=@",
    SIGNED + "x-oss-security-token=@&y=1",
    SIGNED + "X-Tos-Security-Token=@",
    SIGNED + "x-cos-security-token=@",
)
add(
    some(40),
    "Authorization: OSS x:@",
    "Authorization: TC3-HMAC-SHA256 Credential=x/date, Signature=@",
    "authorization: Basic @",
)
add("STS" + "." + some(30), "@", "AccessKeyId=@")
# Web hooks.
add(uid(), "https://open.feishu.cn/open-apis/bot/v2/hook/@", "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=@")
add(
    hexed(64),
    "https://oapi.dingtalk.com/robot/send?access_token=@",
    "https://open.larksuite.com/open-apis/bot/v2/hook/@",
)
add("SEC" + hexed(64), "dingtalk @")
add("T" + capital(8) + "/B" + capital(10) + "/" + some(24), "https://hooks.slack.com/services/@")
add(digits(18) + "/" + some(60), "POST https://discord.com/api/webhooks/@ 429")
add(digits(10) + ":AA" + some(33), "https://api.telegram.org/bot@/sendMessage", "telegram @")
# Known formats.
add("h" + "f_" + some(34), "@", "using @ to log in", "'@'")
add("gh" + "p_" + some(36), "@", "git clone https://@@github.com/a/b".replace("@@", "@\x00"))
add("github" + "_pat_" + some(60), "@")
add("gl" + "pat-" + some(20), "@")
add("sk" + "-" + some(48), "@", "Incorrect API key provided: @.")
add("sk" + "-ant-api03-" + some(80), "@")
add("nv" + "api-" + some(64), "@", "key @ is bad")
add("gs" + "k_" + some(52), "@")
add("r" + "8_" + some(37), "@")
add("sk" + "_live_" + some(24), "@")
add("SG" + "." + some(22) + "." + some(43), "@")
add("dckr" + "_pat_" + some(27), "@", "echo @ | docker login -u x --password-stdin")
add("AGE-" + "SECRET-KEY-1" + some(58, string.ascii_uppercase + string.digits), "@", "# key\n@")
add("AK" + "IA" + capital(16), "@")
add("xo" + "xb-" + digits(12) + "-" + some(24), "@")
add("AI" + "za" + some(35), "@", "?key=@")
add("np" + "m_" + some(36), "@", "//registry.npmjs.org/:_authToken=@")
add("hv" + "s." + some(90), "@")
add("dap" + "i" + hexed(32), "@")
add("ey" + "J" + some(30) + "." + some(60) + "." + some(40), "@", "token: @", "Authorization: Bearer @")
add("wandb" + "_v1_" + some(60), "@")
add("$6" + "$" + some(12) + "$" + some(80), "root:@:19000:0")
# Headers, URLs.
add(
    some(32),
    "authorization: Bearer @",
    "{'Authorization': 'Bearer @'}",
    "Proxy-Authorization: Basic @",
    "PRIVATE-TOKEN: @",
    "X-API-Key: @",
)
add(
    some(32),
    "Cookie: sid=@; x=1",
    "Set-Cookie: session=@; Path=/",
    'curl -H "Authorization: token @"',
    "[('Cookie', 'sid=@')]",
    "got bearer @",
)
add(
    special(12).replace("#", "~"),
    "redis://:@@h:6379".replace("@@", "@\x00"),
    "postgresql+psycopg2://u:@@h/db".replace("@@", "@\x00"),
    "http://u:@@proxy:3128".replace("@@", "@\x00"),
    "root:@@tcp(db:3306)/x".replace("@@", "@\x00"),
)
# Commands and files.
add(
    hexed(40),
    "wandb login @",
    "$ wandb login --relogin @",
    "WANDB_API_KEY=@ wandb login",
    "swanlab login -k @",
    "['wandb', 'login', '@']",
)
add(
    some(12),
    "curl -u user:@ https://h",
    "curl -s -uuser:@ https://h",
    "curl --user 'user:@' https://h",
    "['curl', '-u', 'user:@', 'h']",
)
add(
    some(12),
    "mysql -h db -u root -p@ x",
    "mysqldump -p'@' x",
    "sshpass -p @ ssh h",
    "sshpass -p'@' ssh h",
    "sshpass -p@ scp",
    "docker login -u x -p @ reg",
)
add(
    some(12),
    "redis-cli -h h -a @ ping",
    "ENV HF_TOKEN @",
    "aws configure set aws_secret_access_key @",
    "requirepass @",
    "CREATE USER x IDENTIFIED BY '@'",
)
add(
    some(12),
    "machine api.wandb.ai login user password @",
    "machine h\n  login u\n  password @",
    "ALTER ROLE x PASSWORD '@'",
    "openssl rsa -passin pass:@ -in k",
    "docker run -e HF_TOKEN=@ img",
)
add(
    base(20),
    '"auths": {"reg": {"auth": "@"}}',
    '{"auth":"@"}',
    "_auth=@",
    "identitytoken: @",
    "AccountKey=@;EndpointSuffix=x",
)
add(
    some(12),
    "your password is @",
    "The token is: @",
    "login(token='@')",
    "helm --set auth.password=@",
    "kubectl create secret generic x --from-literal=password=@",
)


def shown(context: str, secret: str) -> str:
    return context.replace("@\x00", secret + "@") if "\x00" in context else context.replace("@", secret)


def leaks(context: str, secret: str, **options: object) -> bool:
    """Whether more than four consecutive characters of the secret's random end are still readable."""
    redactor = Redactor(**options)  # type: ignore[arg-type]
    text = b"\n".join(map(redactor.line, shown(context, secret).encode().split(b"\n"))).decode()
    size = min(len(secret), 5)
    return any(secret[at : at + size] in text for at in range(max(len(secret) - 20, 0), len(secret) - size + 1))


def test_at_most_three_canaries_of_a_hundred_are_missed():
    assert len(CANARIES) >= 200
    missed = [context for context, secret in CANARIES if leaks(context, secret, holds=sieve_for(LITERALS))]
    assert len(missed) <= 0.03 * len(CANARIES), missed


def ordinary(size: int) -> bytes:
    """`size` bytes of training logs: hashes, identifiers, tokens, paths, configurations, failures."""
    chance = random.Random(7)

    def number(low: float, high: float) -> str:
        return f"{chance.uniform(low, high):.4f}"

    def ident(count: int) -> str:
        return "".join(chance.choice("0123456789abcdef") for _ in range(count))

    step = 0
    lines: list[str] = []
    length = 0
    while length < size:
        step += 1
        rank, sha, uid = chance.randrange(64), ident(40), uuid.UUID(int=chance.getrandbits(128))
        line = chance.choice(ORDINARY).format(
            step=step, rank=rank, sha=sha, short=sha[:7], sha256=ident(64), uuid=uid, hex=ident(16), loss=number(0, 9),
            rate=number(1e3, 1e5), port=chance.randrange(1024, 65535), ip=f"10.{rank}.{chance.randrange(256)}.7",
            pid=chance.randrange(1, 1 << 22), count=chance.randrange(1 << 20), word=chance.choice(WORDS), base=ident(22),
            stamp=f"2026-11-20T{chance.randrange(24):02}:17:05.{chance.randrange(10**9):09}Z",
            time=f"2026-11-20 17:45:{step % 60:02},{step % 1000:03}",
        )  # fmt: skip
        lines.append(line)
        length += len(line.encode()) + 1
    return "\n".join(lines).encode()


WORDS = (
    "token",
    "tokens",
    "tokenizer",
    "passwords",
    "keys",
    "cache_key",
    "num_tokens",
    "pad_token",
    "训练",
    "令牌",
    "损失",
    "rank",
)
ORDINARY = r"""
{time} INFO train.py:88 step {step} loss {loss} lr 1.0e-04 grad_norm {loss} tokens/s {rate} mem 61.2GB
{stamp} [rank{rank}]: step={step} loss={loss} num_tokens={count} tokens_per_sec={rate} token_count: {count}
step {step}: token: {count}, tokens: {count}, max_tokens={count}, total_token={count} token/s={rate} per_token: {loss}ms
  "pad_token_id": 0, "eos_token_id": [{count}, 128009], "bos_token_id": 1, "num_key_value_heads": 8,
pad_token_id: 0 eos_token_id: 2 pad_token: <pad> eos_token='</s>' unk_token="<unk>" sep_token=[SEP] image_token=<image>
Setting `pad_token_id` to `eos_token_id`:{count} for open-end generation.
AddedToken("<|im_end|>", rstrip=False, lstrip=False, single_word=False, normalized=False, special=True)
tokenizer_config.json: eos_token: "<|endoftext|>", pad_token: '<|fim_pad|>', bos_token: None, image_token: "<|image_pad|>"
Special tokens have been added in the vocabulary, make sure the associated word embeddings are fine-tuned or trained.
Token indices sequence length is longer than the specified maximum sequence length for this model ({count} > 4096).
git commit {sha} (HEAD -> main, tag: v2.8.{rank}), base {short}; tree {sha}
sha256:{sha256} layer {hex}: Pull complete; digest: sha256:{sha256}
checkpoint /mnt/ckpt/run-{uuid}/step_{step}/model-00001-of-00030.safetensors md5={base} crc32=0x{short}
run id {uuid} wandb: Run data is saved locally in /work/wandb/run-20261120_174505-{short}x
wandb: Currently logged in as: user{rank} (team). Use `wandb login --relogin` to force relogin
node{rank}:{pid}:{pid} [0] NCCL INFO comm 0x55d{hex} rank {rank} nranks 64 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x{hex} - Init COMPLETE
node{rank}:{pid}:{pid} [3] NCCL INFO Channel 00/0 : {rank}[0] -> 5[5] via P2P/CUMEM/read
node{rank}:{pid}:{pid} [1] NCCL WARN NET/IB : Got completion from peer {ip}<{port}> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_{rank}
[rank{rank}]:[E1120 17:45:05.123456789 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={step}, OpType=ALLREDUCE, NumelIn={count}, NumelOut={count}, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.
torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 7/8 clients joined. store key '0//cpu//{rank}'
RuntimeError: [{rank}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by store->get('0:{rank}'), but store->get('0') got error: Connection reset by peer
W1120 17:45:05.123000 {pid} torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers
[E socket.cpp:1019] [c10d] The client socket has timed out after 60000ms while trying to connect to (train-{rank}.headless, {port}).
TCPStore(host=10.0.0.{rank}, port={port}, world_size=64, key=default_pg/0//cuda//0, use_libuv=True) key: worker_{rank}
Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/huggingface_hub/utils/_auth.py", line {rank}, in get_token
    token = os.environ["HF_TOKEN"]
    login(token=token, add_to_git_credential=False)
    client = Client(api_key=api_key, password=password, token=self.token, secret=config.secret)
    raise KeyError(f"no value for token {{token!r}} and key {{key!r}}")
KeyError: 'token'
KeyError: 'HF_TOKEN'
KeyError: 'model.layers.{rank}.self_attn.q_proj.weight'
RuntimeError: Error(s) in loading state_dict for Model: Missing key(s) in state_dict: "embed_tokens.weight", "token_type_embeddings.weight". Unexpected key(s): "secret_head.bias".
ValueError: Unrecognized keys: ['password', 'email', 'token', 'mask'] in batch {step}; expected ["input_ids", "token_type_ids", "labels"]
AssertionError: query_key_value.weight torch.Size([{count}, 4096]) key: torch.Size([8, 128]) value: torch.Size([8, 128])
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank} has a total capacity of 79.11 GiB of which {loss} GiB is free.
    def forward(self, token: torch.Tensor, key: Optional[Tensor] = None, secret: str = "") -> Tensor:
    def __init__(self, password: Optional[str] = None, token: str | None = None, api_key=None):
#{rank} 0x00007f{hex} in grpc::internal::credentials::Check(std::string const&, unsigned long) from /opt/conda/lib/libtorch_cuda.so
#{rank} c10d::TCPStore::doWait(c10::ArrayRef<std::string>, std::chrono::duration<long>) (key=0x{hex}, token=0x{hex})
PWD=/workspace/run HOME=/home/user OLDPWD=/data CUDA_VISIBLE_DEVICES=0,1 NCCL_SOCKET_IFNAME=eth0 MASTER_ADDR={ip} MASTER_PORT={port}
HF_TOKEN_PATH=/home/user/.cache/huggingface/token GOOGLE_APPLICATION_CREDENTIALS=/etc/gcp/key.json SSL_KEY=/etc/tls/tls.key
HF_TOKEN= WANDB_API_KEY=None password: null secret: "" api_key=***, token: ${{HF_TOKEN}} token=$HF_TOKEN password=<unset>
huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/models/x (Request ID: Root=1-{short}-{hex};{uuid})
Invalid username or password. Please make sure your token is valid; token is missing, password is required, api key not found
botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject operation: The provided token has expired.
MountVolume.SetUp failed for volume "creds" : secret "train-secrets" not found; couldn't find key HF_TOKEN in Secret default/train-secrets
Warning  FailedMount  pod/train-{rank}  MountVolume.SetUp failed for volume "kube-api-access-{short}" : failed to fetch token: serviceaccount "x" not found
    secretName: train-secrets key: token name: HF_TOKEN valueFrom: secretKeyRef
Permission denied (publickey,password). Host key verification failed. Load key "/home/user/.ssh/id_rsa": bad permissions
http://{ip}:{port}/metrics?step={step} tcp://{ip}:29500 s3://bucket/data/shard-{step:05}.tar https://pypi.org/simple/torch/ git+https://github.com/a/b@{short}
Authorization failed: the server does not accept this user. Bearer authentication required. Basic configuration loaded
sampler key=random seed=1234 sort_key=length group_key: bucket primary key is sample_id; cache_key={sha256} partition_key=day
forward_pass: {loss}ms backward pass: {rate}ms pass 3 of 7 pass_rate=0.98 compass: 12.3 tokens pass=True passed: 12
{word}: {count} {word}={loss} "{word}": {count} {word} {word} {word} [{word}]
训练 step {step} 损失: {loss} 令牌: {count} 令牌数：{count} 密码：不能为空 密钥不存在 口令错误
| step | token | loss | secret |
| {step} | {count} | {loss} | none |
Epoch 0:  12%|█▏        | {step}/9999 [00:12<01:39, {loss}it/s, loss={loss}, tokens=1.2e+06, token_acc=0.61]
INFO task: finetune disk: 12% mask=None ask: 5 peak=61.2GB risk: low Task sk=0.5 ak: 12
echo "starting rank {rank}" | tee /tmp/log; curl -s http://{ip}:{port}/healthz; zip -r out.zip logs; mysql -h db -P 3306
cookie cutter template; the basic idea; bearer of news: none; Signature: (x: int, y: str) -> bool; signature=None
Xid (PCI:0000:1b:00): 79, pid={pid}, name=python, GPU has fallen off the bus. GPU-{uuid}
0000:1b:00.0 mlx5_core {hex} uuid={uuid} serial: MT{count}X0{rank} firmware 28.39.1002 guid 0x{hex}
AKIRA dataset, hf_transfer enabled, sk-learn 1.5, glpat pattern, ghp off, npm_config_cache=/tmp eyJust text
Loading key: query value: 12 name: token_embd.weight value: 3 {{"name": "tokenizer", "value": "gpt2"}} {{"key": "token", "value": {count}}}
""".strip().splitlines()


@pytest.mark.parametrize("holds", [None, sieve_for(LITERALS)], ids=["alone", "sieve"])
def test_ordinary_logs_stay_as_they_are(holds):
    redactor = Redactor(holds)
    changed = {after for line in ordinary(1_000_000).split(b"\n") if (after := redactor.line(line)) != line}
    assert sorted(changed) == []
