{{- define "prefleet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Never app.kubernetes.io/managed-by=prefleet or prefleet.dev/fleet: those mark the pods of fleets. */}}
{{- define "prefleet.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "prefleet.labels" -}}
{{ include "prefleet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "prefleet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "prefleet.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false: name the account to use" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "prefleet.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* Seconds of a duration such as 1m30s. */}}
{{- define "prefleet.seconds" -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $seconds = addf $seconds (mulf (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) $unit) (trimSuffix $unit . | float64)) -}}
{{- end -}}
{{- $seconds -}}
{{- end -}}

{{/* What the schema cannot say of values, and the operator would say only as it ends at its start. */}}
{{- define "prefleet.checkValues" -}}
{{- if lt (include "prefleet.seconds" .Values.loopInterval | float64) 1.0 -}}
{{- fail (printf "loopInterval: %s would flood the API server: write 1s or more" .Values.loopInterval) -}}
{{- end -}}
{{- $fast := include "prefleet.seconds" .Values.sizing.fastWindow | float64 -}}
{{- if or (lt $fast 5.0) (ge $fast (include "prefleet.seconds" .Values.sizing.window | float64)) -}}
{{- fail (printf "sizing: fastWindow %s beside window %s: write a fastWindow of 5s or more, and a longer window" .Values.sizing.fastWindow .Values.sizing.window) -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.metricsSources -}}
{{- if has .name $names -}}
{{- fail (printf "metricsSources: %s is defined twice: give every source its own name" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}

{{- define "prefleet.config" -}}
{{- include "prefleet.checkValues" . -}}
runtimeImage: {{ default (include "prefleet.image" .) .Values.runtimeImage | quote }}
loopInterval: {{ .Values.loopInterval | quote }}
sizing: {{ toJson .Values.sizing }}
namespaces: {{ toJson .Values.watchNamespaces }}
metricsSources: {{ toJson .Values.metricsSources }}
{{- end -}}

{{/* What the operator does in the namespaces of fleets, and nothing else: the tests compare it with an audit log. */}}
{{- define "prefleet.fleetRules" -}}
- apiGroups: [prefleet.dev]
  resources: [prefillpolicies]
  verbs: [get, list, watch]
- apiGroups: [prefleet.dev]
  resources: [prefillpolicies/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch, create, patch, delete]
# The replicas of autoscaled roles, where no other controller sets them.
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [patch]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets/scale]
  verbs: [patch]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
