# One image for the operator, for the runtime that init containers bring into engine pods, and for simulated pods.
FROM python:3.12-slim
COPY pyproject.toml README.md LICENSE CHANGELOG.md /src/
COPY operator /src/operator
COPY node_runtime /src/node_runtime
RUN pip install --no-cache-dir "/src[operator,replay]" && rm -rf /src
USER 65532:65532
CMD ["prefleet", "--help"]
