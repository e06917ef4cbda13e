{{- define "raftmq.labels" -}}
{app.kubernetes.io/name: raftmq, app.kubernetes.io/instance: {{ .root.Release.Name }}, app.kubernetes.io/component: {{ .component }}}
{{- end -}}

{{/* Behind names of pods: nothing, so that the namespace does not matter; with TLS, whose wildcards need it, all of it. */}}
{{- define "raftmq.domain" -}}
{{- if .Values.tls.enabled }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}{{ end -}}
{{- end -}}

{{/* Addresses of all name servers, as brokers and clients in the namespace take them. */}}
{{- define "raftmq.namesrv" -}}
{{- $root := . -}}
{{- $addresses := list -}}
{{- range $number := until (int .Values.namesrv.replicas) -}}
{{- $addresses = append $addresses (printf "%s-namesrv-%d.%s-namesrv%s:9876" $root.Release.Name $number $root.Release.Name (include "raftmq.domain" $root)) -}}
{{- end -}}
{{- join ";" $addresses -}}
{{- end -}}

{{/* All replicas of a new group. */}}
{{- define "raftmq.peers" -}}
{{- $root := . -}}
{{- $peers := list -}}
{{- range $number := until (int .Values.broker.replicas) -}}
{{- $peers = append $peers (printf "n%d@%s-broker-%d.%s-broker%s:10931" $number $root.Release.Name $number $root.Release.Name (include "raftmq.domain" $root)) -}}
{{- end -}}
{{- join "," $peers -}}
{{- end -}}

{{- define "raftmq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end -}}

{{- define "raftmq.podSecurity" -}}
{runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{- define "raftmq.containerSecurity" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}
